#include "wait_worker.h"

#include <fairshard/comm/reason.h>

#include <c10/util/StringUtil.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

/// Where a rank has written how its process is found.
std::string place_key(int rank) { return c10::str("where/", rank); }
std::string claim_key(int64_t question) { return c10::str("claim/", question); }
std::string question_key(int64_t question) { return c10::str("question/", question); }
std::string report_key(int64_t question) { return c10::str("report/", question); }
std::string note_key(int64_t question, int rank) { return c10::str("note/", question, "/", rank); }

/// How often answers and reports that must come are looked for.
constexpr std::chrono::milliseconds kShortPause(100);

/// A question is older than this only if nobody reports on it any more.
constexpr std::chrono::minutes kLongestRound(2);

/// Whether a rank went on between two looks at it.
bool have_moved(const std::vector<StandingNote>& before, const std::vector<StandingNote>& after) {
  return !std::equal(before.begin(), before.end(), after.begin(), [](const auto& a, const auto& b) {
    return a.current ? b.current && b.current->sequence == a.current->sequence
                     : b.started == a.started;
  });
}

/// The board is being destroyed.
struct IsLeft {};

}  // namespace

/// Calls a function that may block.
template <typename Function>
auto WaitWorker::in_store(const Function& function) {
  struct Stay {
    explicit Stay(BoardState& shared) : shared(shared) { shared.is_in_store = true; }
    ~Stay() {
      const std::lock_guard lock(shared.mutex);
      shared.is_in_store = false;
      shared.wake.notify_all();
    }
    BoardState& shared;
  };
  std::unique_lock lock(shared_->mutex);
  require_board();
  const Stay stay(*shared_);
  lock.unlock();
  return function();
}

void WaitWorker::run() {
  try {
    store_ = in_store([&] { return shared_->given->clone(); });
    WaitNote place;
    place.where = Whereabouts::own();
    write(place_key(shared_->rank), place.encoded());
    while (true) {
      const std::optional<Duration> wanted = wait();
      answer_questions();
      if (wanted && !awaited_report_) {  // else another rank is about to say it
        ask(*wanted);
      }
      receive_report();
    }
  } catch (const IsLeft&) {
    return;
  } catch (const std::exception& error) {
    const std::lock_guard lock(shared_->mutex);
    shared_->failure = "the group's store has failed: " + reason_of(error);
  }
}

void WaitWorker::require_board() const {
  if (shared_->is_left) {
    throw IsLeft();
  }
}

/// Returns when it is time to look, or when a question is to be asked.
std::optional<BoardState::Duration> WaitWorker::wait() {
  std::unique_lock lock(shared_->mutex);
  const auto is_called = [&] { return shared_->is_left || shared_->wanted; };
  while (!is_called() && !awaited_report_ && shared_->period == Duration::zero()) {
    shared_->wake.wait(lock);
  }
  if (!is_called()) {
    const Duration time =
        shared_->period == Duration::zero() ? Duration(kShortPause) : shared_->period;
    shared_->wake.wait_for(lock, time, is_called);
  }
  require_board();
  return std::exchange(shared_->wanted, std::nullopt);
}

/// The same, for a moment, while answers are awaited.
void WaitWorker::pause(Duration time) {
  std::unique_lock lock(shared_->mutex);
  shared_->wake.wait_for(lock, time, [&] { return shared_->is_left; });
  require_board();
}

WaitNote WaitWorker::make_note() {
  const std::lock_guard lock(shared_->mutex);
  require_board();
  return shared_->make_note();
}

std::optional<std::string> WaitWorker::read(const std::string& key) {
  return in_store([&]() -> std::optional<std::string> {
    if (!store_->check({key})) {
      return std::nullopt;
    }
    return store_->get_to_str(key);
  });
}

std::optional<WaitNote> WaitWorker::read_note(const std::string& key) {
  const auto text = read(key);
  return text ? WaitNote::decoded(*text) : std::nullopt;
}

void WaitWorker::write(const std::string& key, const std::string& text) {
  in_store([&] { store_->set(key, text); });
}

void WaitWorker::answer_questions() {
  while (read(question_key(next_))) {
    if (read(report_key(next_))) {  // it was answered without this rank, and is of no interest now
      next_ += 1;
      continue;
    }
    write(note_key(next_, shared_->rank), make_note().encoded());
    awaited_report_ = next_++;
    awaited_since_ = Clock::now();
  }
}

void WaitWorker::ask(Duration patience) {
  if (in_store([&] { return store_->add(claim_key(next_), 1); }) != 1) {
    return;  // another was quicker: its question is there at the next look
  }
  const WaitNote before = make_note();
  write(question_key(next_), std::to_string(shared_->rank));
  WaitReport report = report_of(collect(before, patience));
  report.is_own = true;
  write(report_key(next_), report.verdict + "\n" + report.table);
  next_ += 1;
  publish(std::move(report));
}

WaitRound WaitWorker::collect(const WaitNote& before, Duration patience) {
  WaitRound round;
  round.asker = shared_->rank;
  round.ranks.resize(shared_->size);
  const Whereabouts own = Whereabouts::own();
  for (int rank = 0; rank < shared_->size; ++rank) {
    if (const auto place = read_note(place_key(rank))) {
      round.ranks[rank].where = place->where;
    }
  }
  const auto deadline = Clock::now() + patience;
  while (true) {
    const bool is_complete = ask_all(round, own);
    const WaitNote now = make_note();
    round.ranks[shared_->rank].answer = now;
    round.has_moved = have_moved(before.standings, now.standings);
    if (is_complete || round.has_moved || Clock::now() > deadline) {
      return round;
    }
    pause(kShortPause);
  }
}

/// Whether all have answered, but for those of which the system says that they cannot.
bool WaitWorker::ask_all(WaitRound& round, const Whereabouts& own) {
  bool is_complete = true;
  for (int rank = 0; rank < shared_->size; ++rank) {
    WaitRound::Rank& known = round.ranks[rank];
    if (rank == shared_->rank || known.answer) {
      continue;
    }
    known.answer = read_note(note_key(next_, rank));
    if (known.answer) {
      known.where = known.answer->where;
      continue;
    }
    known.state = known.where ? state_of_process(*known.where, own) : ProcessState::kUnknown;
    is_complete &= known.state == ProcessState::kStopped || known.state == ProcessState::kEnded;
  }
  return is_complete;
}

void WaitWorker::receive_report() {
  const auto text = awaited_report_ ? read(report_key(*awaited_report_)) : std::nullopt;
  if (!text) {
    if (Clock::now() - awaited_since_ > kLongestRound) {
      awaited_report_.reset();  // whoever has asked has ended since
    }
    return;
  }
  const size_t end = text->find('\n');
  awaited_report_.reset();
  publish({text->substr(0, end), text->substr(end + 1)});
}

void WaitWorker::publish(WaitReport report) {
  const std::lock_guard lock(shared_->mutex);
  shared_->report = std::move(report);
}

}  // namespace fairshard::comm

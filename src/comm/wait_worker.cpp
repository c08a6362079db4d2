#include "wait_worker.h"

#include "wait_verdict.h"
#include <fairshard/comm/reason.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <mutex>

namespace fairshard::comm {
namespace {

constexpr const char* kRoundKey = "round";
constexpr const char* kLogKey = "log";
constexpr const char* kToldKey = "told";
std::string note_key(int rank) { return c10::str("note/", rank); }

/// How often answers that must come are looked for; a store has little to do in large groups, too.
std::chrono::milliseconds short_pause(int size) {
  return std::chrono::milliseconds(std::clamp(2 * size, 20, 1000));
}

/// A text and the round, or the table in the log, that it belongs to.
struct Numbered {
  uint64_t number = 0;
  std::string text;

  std::string encoded() const { return c10::str(number, " ", text); }
  static Numbered decoded(const std::string& line) {
    const size_t end = line.find(' ');
    return {std::stoull(line), end == std::string::npos ? "" : line.substr(end + 1)};
  }
};

/// 0 where there is none.
uint64_t number_of(const std::string& line) {
  return line.empty() ? 0 : Numbered::decoded(line).number;
}

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
    explicit Stay(WaitRequests& shared) : shared(shared) { shared.in_store_since = Clock::now(); }
    ~Stay() {
      const std::lock_guard lock(shared.mutex);
      shared.in_store_since.reset();
      shared.wake.notify_all();
    }
    WaitRequests& shared;
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
    write_note(0);  // where this rank runs
    while (true) {
      wait();
      answer();
      ask();
      explain_wait();
      receive_told();
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

/// Returns when it is time to look, or when there is something to ask.
void WaitWorker::wait() {
  std::unique_lock lock(shared_->mutex);
  const bool is_being_told = awaited_ && awaited_->moves == shared_->moves;
  const auto is_called = [&] {
    return shared_->is_left || shared_->asked > shared_->begun ||
           (shared_->waits_long && !is_being_told);
  };
  while (!is_called() && !shared_->is_looking) {
    shared_->wake.wait(lock);
  }
  shared_->wake.wait_for(lock, shared_->pace.period, is_called);
  require_board();
}

/// For a moment, while answers are awaited.
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

WaitRequests::Pace WaitWorker::pace() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->pace;
}

std::optional<std::string> WaitWorker::read(const std::string& key) {
  return in_store([&]() -> std::optional<std::string> {
    if (!store_->check({key})) {
      return std::nullopt;
    }
    return store_->get_to_str(key);
  });
}

void WaitWorker::write(const std::string& key, const std::string& text) {
  in_store([&] { store_->set(key, text); });
}

uint64_t WaitWorker::read_number(const std::string& key) {
  return number_of(read(key).value_or(""));
}

/// If another rank has asked.
void WaitWorker::answer() {
  const uint64_t newest = read_number(kRoundKey);
  if (newest <= answered_) {
    return;
  }
  // Whether it will be told of is in the store ahead of the round.
  const uint64_t log = read_number(kLogKey);
  if (log > read_number(kToldKey) && !is_being_told()) {
    await_told(log);
  }
  write_note(newest);
}

void WaitWorker::await_told(uint64_t log) {
  const std::lock_guard lock(shared_->mutex);
  awaited_ = AwaitedTable{log, shared_->moves, Clock::now()};
}

bool WaitWorker::is_being_told() {
  const std::lock_guard lock(shared_->mutex);
  if (awaited_ && awaited_->moves != shared_->moves) {
    awaited_.reset();  // it would be of an older wait
  }
  return awaited_.has_value();
}

void WaitWorker::write_note(uint64_t round) {
  answered_ = round;
  write(note_key(shared_->rank), Numbered{round, make_note().encoded()}.encoded());
}

/// Begins a round for all requests that have come so far, if there are any.
void WaitWorker::ask() {
  Purpose purpose;
  {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->asked == shared_->begun) {
      return;
    }
    purpose = {shared_->asked, shared_->asked_for_log > shared_->begun};
    shared_->begun = shared_->asked;
    shared_->waits_long &= !purpose.is_for_log;
  }
  while (purpose.is_for_log && purpose.log == 0) {
    purpose.log = claim_log(read(kLogKey).value_or(""));  // others may claim one just now
  }
  begin_round(purpose);
}

/// Begins a round because this rank waits for long, unless another one tells of that just now.
void WaitWorker::explain_wait() {
  {
    const std::lock_guard lock(shared_->mutex);
    if (!shared_->waits_long) {
      return;
    }
  }
  uint64_t given_up = 0;
  if (is_being_told()) {
    if (Clock::now() - awaited_->since < pace().patience) {
      return;
    }
    given_up = awaited_->log;
    awaited_.reset();
  }
  const std::string newest = read(kLogKey).value_or("");
  if (const uint64_t log = number_of(newest); log > std::max(given_up, read_number(kToldKey))) {
    await_told(log);
  } else if (const uint64_t claimed = claim_log(newest)) {
    {
      const std::lock_guard lock(shared_->mutex);
      shared_->waits_long = false;
    }
    begin_round({0, true, claimed});
  }  // else another was quicker, as the next look shows
}

/// The number of this rank's table, which follows that of the newest one; 0 if another rank has
/// claimed it meanwhile.
uint64_t WaitWorker::claim_log(const std::string& newest) {
  // Two that claim the same number write different texts.
  const Numbered own{number_of(newest) + 1, std::to_string(shared_->rank)};
  const std::string text = own.encoded();
  const std::vector<uint8_t> before(newest.begin(), newest.end());
  const std::vector<uint8_t> after(text.begin(), text.end());
  const auto now = in_store([&] { return store_->compareSet(kLogKey, before, after); });
  return now == after ? own.number : 0;
}

void WaitWorker::begin_round(const Purpose& purpose) {
  const uint64_t round = in_store([&] { return store_->add(kRoundKey, 1); });
  write_note(round);
  const WaitRound found = collect(round);
  WaitReport report = report_of(found);
  if (purpose.is_for_log) {
    if (read_number(kToldKey) < purpose.log) {  // else a later one was quicker
      // One that has gone on explains nothing to those that still wait: they claim the next table.
      const std::string text = found.has_moved ? "" : report.verdict + "\n" + report.table;
      write(kToldKey, Numbered{purpose.log, text}.encoded());
    }
    awaited_.reset();
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->outcomes.push_back(
      {std::move(report), purpose.covers, purpose.is_for_log && !is_unused(found), shared_->moves});
}

WaitRound WaitWorker::collect(uint64_t round) {
  WaitRound found;
  found.asker = shared_->rank;
  found.ranks.resize(shared_->size);
  const WaitNote before = make_note();
  found.ranks[shared_->rank].where = before.where;
  const auto deadline = Clock::now() + pace().patience;
  while (true) {
    const bool is_complete = read_notes(found, round, before.where);
    const WaitNote now = make_note();
    found.ranks[shared_->rank].answer = now;
    found.has_moved = have_moved(before.standings, now.standings);
    if (is_complete || found.has_moved || Clock::now() > deadline) {
      return found;
    }
    pause(short_pause(shared_->size));
    answer();  // others may ask at the same time
  }
}

/// Whether all have answered, but for those of which the system says that they cannot.
bool WaitWorker::read_notes(WaitRound& found, uint64_t round, const Whereabouts& own) {
  bool is_complete = true;
  for (int rank = 0; rank < shared_->size; ++rank) {
    WaitRound::Rank& known = found.ranks[rank];
    if (rank == shared_->rank || known.answer) {
      continue;
    }
    if (const auto text = read(note_key(rank))) {
      const Numbered numbered = Numbered::decoded(*text);
      if (auto note = WaitNote::decoded(numbered.text)) {
        known.where = note->where;
        if (numbered.number >= round) {
          known.answer = std::move(note);
          continue;
        }
      }
    }
    known.state = known.where ? state_of_process(*known.where, own) : ProcessState::kUnknown;
    is_complete &= known.state == ProcessState::kStopped || known.state == ProcessState::kEnded;
  }
  return is_complete;
}

/// What another rank has logged of a round that this one has answered.
void WaitWorker::receive_told() {
  if (!is_being_told()) {
    return;
  }
  const auto line = read(kToldKey);
  const Numbered told = line ? Numbered::decoded(*line) : Numbered();
  if (told.number < awaited_->log) {
    return;
  }
  const size_t end = told.text.find('\n');
  const std::lock_guard lock(shared_->mutex);
  if (awaited_->moves == shared_->moves && !told.text.empty()) {
    shared_->waits_long = false;
    shared_->outcomes.push_back(
        {{told.text.substr(0, end), told.text.substr(end + 1)}, 0, false, shared_->moves});
  }
  awaited_.reset();
}

}  // namespace fairshard::comm

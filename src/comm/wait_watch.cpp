#include "wait_watch.h"

#include "wait_signal.h"

#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Waits are explained after a quarter of the timeout, and not later than this.
constexpr seconds kLatestLimit(120);

/// A store that takes longer has no process behind it that runs.
constexpr seconds kStoreSilence(4);

double to_seconds(WaitWatch::Duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

WaitWatch::WaitWatch(std::unique_ptr<WaitBoard> board, std::string trouble, int rank, int size,
                     Duration timeout, Look look)
    : rank_(rank),
      size_(size),
      timeout_(timeout),
      look_(std::move(look)),
      trouble_(std::move(trouble)),
      board_(std::move(board)),
      limit_(std::min<Duration>(timeout / 4, kLatestLimit)),
      signals_(wait_signals()) {
  if (board_) {
    board_->set_note([this] { return make_note(); });
  }
  thread_ = std::thread([this] { run(); });
}

WaitWatch::~WaitWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    wake_.notify_all();
  }
  thread_.join();
}

WaitWatch::Duration WaitWatch::tick_time() const {
  return std::clamp<Duration>(limit_ / 8, milliseconds(10), seconds(1));
}

/// After which rounds of others are looked for.
WaitWatch::Duration WaitWatch::still_time() const {
  return std::min<Duration>(limit_ / 2, seconds(2));
}

WaitBoard::Pace WaitWatch::pace() const {
  // However many ranks there are, a store has little to do.
  const Duration period = std::max<Duration>(tick_time(), size_ * milliseconds(10));
  return {period, std::max<Duration>(still_time() + 3 * period, seconds(4))};
}

void WaitWatch::set_limit(Duration limit) {
  const std::lock_guard lock(mutex_);
  limit_ = limit;
  wake_.notify_all();
}

std::string WaitWatch::explain() {
  TORCH_CHECK(owner_.is_own_process(),
              "explain_waits: this process was forked from the one that made the process group");
  std::unique_lock lock(mutex_);
  request(/*is_for_log=*/false);
  wake_.notify_all();
  explained_.wait(lock, [this, number = asked_] { return stop_ || done_ >= number; });
  return last_table_;
}

void WaitWatch::run() {
  pthread_setname_np(pthread_self(), "fairshard-watch");
  std::unique_lock lock(mutex_);
  while (!stop_) {
    // An outcome is taken soon after it is there.
    const bool is_waiting = is_waiting_for_outcome();
    const Duration time = tick_time();
    wake_.wait_for(lock, is_waiting ? std::min<Duration>(time, milliseconds(20)) : time, [&] {
      return stop_ || tick_time() != time || is_waiting_for_outcome() != is_waiting;
    });
    if (!stop_) {
      tick();
    }
  }
  explained_.notify_all();
}

void WaitWatch::tick() {
  const std::vector<Standing> standings = look_();
  notice_moves(standings);
  receive();
  notice_wait(standings);
  const int64_t signals = wait_signals();
  if (std::exchange(signals_, signals) != signals) {
    request(/*is_for_log=*/true);
  }
  if (!board_) {
    return;
  }
  board_->set_pace(pace());
  // Not at once: groups that are soon gone leave nothing in the store.
  const bool is_young = Clock::now() - made_ < std::min<Duration>(limit_ / 2, seconds(5));
  if (!is_young) {
    board_->start();
  }
  const bool is_still = Clock::now() - last_move_ > still_time();
  board_->look(is_waiting_for_outcome() || (is_still && !is_young));
}

void WaitWatch::notice_moves(const std::vector<Standing>& standings) {
  uint64_t moves = 0;
  for (const Standing& standing : standings) {
    moves += standing.moves;
  }
  if (std::exchange(moves_, moves) != moves) {
    last_move_ = Clock::now();
    is_explaining_wait_ = is_explained_ = false;
    verdict_->set("");
    seen_moves_ = board_ ? board_->note_move() : 0;
  }
}

/// Has a wait explained that lasts for long, unless one that was quicker has.
void WaitWatch::notice_wait(const std::vector<Standing>& standings) {
  for (size_t i = 0; i < standings.size(); ++i) {
    const auto& call = standings[i].current;
    const std::pair key(i, call ? call->sequence : 0);
    if (!call || noticed_ == key || Clock::now() - call->since < limit_) {
      continue;
    }
    noticed_ = key;
    const int64_t step = step_;
    TORCH_WARN("rank ", rank_, " of ", size_, " has waited for ",
               seconds_text(to_seconds(Clock::now() - call->since)), " in ", call->text,
               step < 0 ? "" : c10::str(", after step ", step), ", and goes on for at most ",
               seconds_text(to_seconds(timeout_)), " in all");
    is_explaining_wait_ = !is_explained_;
    if (board_ && is_explaining_wait_) {
      board_->explain_wait();
    }
    return;
  }
}

/// Has all ranks asked, after this call.
void WaitWatch::request(bool is_for_log) {
  asked_ += 1;
  asked_for_log_ = is_for_log ? asked_ : asked_for_log_;
  if (board_) {
    board_->ask(asked_, is_for_log);
  }
}

void WaitWatch::receive() {
  while (const auto outcome = board_ ? board_->take() : std::nullopt) {
    finish(*outcome);
  }
  if (is_waiting_for_outcome()) {
    if (const std::string reason = trouble(); !reason.empty()) {
      finish(
          {own_report(reason), asked_, is_explaining_wait_ || asked_for_log_ > done_, seen_moves_});
    }
  }
}

/// Why other ranks cannot be asked, if so.
std::string WaitWatch::trouble() const {
  if (!board_) {
    return trouble_;
  }
  if (board_->time_in_store() > kStoreSilence) {
    return "the store of the group does not answer: the process that serves it (rank 0, or a "
           "launcher) may be stopped, or cannot be reached";
  }
  return board_->failure();
}

void WaitWatch::finish(const WaitBoard::Outcome& outcome) {
  // Of one that the store has held up since, all was said.
  const bool is_new = outcome.covers > done_ || is_explaining_wait_;
  const bool is_in_a_log = outcome.is_for_log || outcome.covers == 0;
  if (outcome.moves == seen_moves_) {
    verdict_->set(outcome.report.verdict);
    is_explained_ |= is_in_a_log;
  }
  is_explaining_wait_ &= !is_in_a_log;
  if (outcome.is_for_log && is_new) {
    TORCH_WARN(outcome.report.table);
  }
  last_table_ = outcome.report.table;
  done_ = std::max(done_, outcome.covers);
  explained_.notify_all();
}

WaitNote WaitWatch::make_note() const {
  WaitNote note;
  note.where = Whereabouts::own();
  note.step = step_;
  for (const Standing& standing : look_()) {
    note.standings.push_back(to_note(standing));
  }
  return note;
}

/// Where the others cannot be asked.
WaitReport WaitWatch::own_report(const std::string& trouble) const {
  WaitRound round;
  round.asker = rank_;
  round.ranks.resize(size_);
  round.trouble = trouble;
  round.ranks[rank_].answer = make_note();
  round.ranks[rank_].where = round.ranks[rank_].answer->where;
  return report_of(round);
}

}  // namespace fairshard::comm

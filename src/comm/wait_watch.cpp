#include "wait_watch.h"

#include "wait_signal.h"
#include <fairshard/comm/reason.h>

#include <c10/util/Exception.h>

#include <pthread.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// Waits are explained after a quarter of the timeout, and not later than this.
constexpr seconds kLatestLimit(120);

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

WaitWatch::Pace WaitWatch::pace() const {
  Pace pace{};
  pace.tick = std::clamp<Duration>(limit_ / 8, milliseconds(10), seconds(1));
  pace.still = std::min<Duration>(limit_ / 2, seconds(10));
  // However many ranks there are, a store has little to do.
  pace.period = std::max<Duration>(pace.tick, size_ * milliseconds(10));
  pace.patience = std::max<Duration>(pace.still + 3 * pace.period, seconds(5));
  return pace;
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
  const uint64_t before = reports_;
  is_wanted_ = true;
  wake_.notify_all();
  explained_.wait(lock, [&] { return stop_ || reports_ != before; });
  return last_report_;
}

void WaitWatch::run() {
  pthread_setname_np(pthread_self(), "fairshard-watch");
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const Duration pause = asked_ ? std::min<Duration>(pace().tick, milliseconds(50)) : pace().tick;
    wake_.wait_for(lock, pause, [&] { return stop_ || (is_wanted_ && !asked_); });
    if (!stop_) {
      tick();
    }
  }
  explained_.notify_all();
}

void WaitWatch::tick() {
  const std::vector<Standing> standings = look_();
  notice_moves(standings);
  const bool waits_long = notice_wait(standings);
  const int64_t signals = wait_signals();
  const bool was_signalled = std::exchange(signals_, signals) != signals;
  const bool is_used = std::any_of(standings.begin(), standings.end(),
                                   [](const Standing& one) { return one.started > 0; });
  receive();
  // One that was quicker may have explained this very wait.
  const bool is_explained = reported_ && Clock::now() - *reported_ < limit_ / 2;
  if ((waits_long && !is_explained) || (was_signalled && is_used)) {
    logs_ = true;
    is_wanted_ = true;
  }
  if (std::exchange(is_wanted_, false) && !asked_) {
    ask();
  }
  // Not at once: groups that are soon gone leave nothing in the store.
  if (board_ && Clock::now() - made_ > std::min<Duration>(pace().still, seconds(5))) {
    board_->start();
  }
  if (board_) {
    const bool looks = asked_ || Clock::now() - last_move_ > pace().still;
    board_->look_every(looks ? pace().period : Duration::zero());
  }
}

void WaitWatch::notice_moves(const std::vector<Standing>& standings) {
  uint64_t moves = 0;
  for (const Standing& standing : standings) {
    moves += standing.moves;
  }
  if (std::exchange(moves_, moves) != moves) {
    last_move_ = Clock::now();
    verdict_->set("");
  }
}

/// Whether there is a wait to be told of.
bool WaitWatch::notice_wait(const std::vector<Standing>& standings) {
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
    return true;
  }
  return false;
}

void WaitWatch::ask() {
  asked_ = Clock::now();
  if (board_) {
    board_->ask(pace().patience);
  }
}

void WaitWatch::receive() {
  if (board_) {
    if (const auto report = board_->take()) {
      finish(*report);
      return;
    }
  }
  if (!asked_) {
    return;
  }
  const std::string trouble = board_ ? board_->failure() : trouble_;
  if (!trouble.empty()) {
    finish(own_report(trouble));
  } else if (Clock::now() - *asked_ > pace().patience + seconds(2)) {
    finish(own_report(board_->is_in_store()
                          ? "the store of the group does not answer: the process that serves it "
                            "(rank 0, or a launcher) may be stopped, or cannot be reached"
                          : "another rank has asked, and has not told what it has found"));
  }
}

void WaitWatch::finish(const WaitReport& report) {
  verdict_->set(report.verdict);
  if (report.is_own && std::exchange(logs_, false)) {
    TORCH_WARN(report.table);
  }
  asked_.reset();
  reported_ = Clock::now();
  last_report_ = report.table;
  reports_ += 1;
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
  WaitReport report = report_of(round);
  report.is_own = true;
  return report;
}

}  // namespace fairshard::comm

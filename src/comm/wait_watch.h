#pragma once
// Notices that a rank waits for long, and has the ranks explain it to each other.

#include "standing.h"
#include "verdict.h"
#include "wait_board.h"
#include <fairshard/comm/process_owned.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace fairshard::comm {

/// One for each process group of which a process is a member. A thread wakes up now and then, and
/// looks how far the rank has come: that is all while collectives come and go. When a wait has
/// lasted for long it tells so in the log, and asks the other ranks; for questions of others it
/// looks only while the rank neither starts nor ends a collective. How ranks ask: Note [Rounds of
/// waits].
///
/// The thread blocks on nothing, so that the destructor can wait for it; for what may block see
/// WaitBoard.
class WaitWatch {
 public:
  using Clock = std::chrono::steady_clock;
  using Duration = Clock::duration;
  /// One Standing per backend of the group, always the same ones.
  using Look = std::function<std::vector<Standing>()>;

  /// `timeout` is the group's. Without a board a rank explains only itself, and tells the reason,
  /// which is `trouble`.
  WaitWatch(std::unique_ptr<WaitBoard> board, std::string trouble, int rank, int size,
            Duration timeout, Look look);
  ~WaitWatch();
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;

  /// Waits longer than this are explained without being asked.
  void set_limit(Duration limit);
  /// Of the trainer, if somebody says it.
  void note_step(int64_t step) { step_.store(step, std::memory_order_relaxed); }
  /// Asks all ranks. Blocks until they have answered, and not for long.
  std::string explain();
  /// For errors of this group's collectives.
  std::shared_ptr<const Verdict> verdict() const { return verdict_; }

 private:
  void run();
  void tick();
  Duration tick_time() const;
  Duration still_time() const;
  WaitBoard::Pace pace() const;
  void notice_moves(const std::vector<Standing>& standings);
  void notice_wait(const std::vector<Standing>& standings);
  void request(bool is_for_log);
  bool is_waiting_for_outcome() const { return asked_ > done_ || is_explaining_wait_; }
  void receive();
  std::string trouble() const;
  WaitNote make_note() const;
  WaitReport own_report(const std::string& trouble) const;
  void finish(const WaitBoard::Outcome& outcome);

  const int rank_;
  const int size_;
  const Duration timeout_;
  const Look look_;
  const std::shared_ptr<Verdict> verdict_ = std::make_shared<Verdict>();
  std::atomic<int64_t> step_ = -1;
  const std::string trouble_;
  /// After what it looks at: its thread ends first.
  const std::unique_ptr<WaitBoard> board_;
  const DeleteInOwnProcess owner_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable explained_;
  bool stop_ = false;
  Duration limit_;
  const Clock::time_point made_ = Clock::now();
  /// Of the backends, and how often they were seen to have changed.
  uint64_t moves_ = 0;
  uint64_t seen_moves_ = 0;
  Clock::time_point last_move_ = Clock::now();
  /// The wait that was told of: its backend and its number.
  std::optional<std::pair<size_t, uint64_t>> noticed_;
  /// Whether it is about to be explained, and whether that is known.
  bool is_explaining_wait_ = false;
  bool is_explained_ = false;
  int64_t signals_;
  /// Requests so far, the newest one whose table belongs into the log, and the newest answered one.
  uint64_t asked_ = 0;
  uint64_t asked_for_log_ = 0;
  uint64_t done_ = 0;
  std::string last_table_;
  std::thread thread_;
};

}  // namespace fairshard::comm

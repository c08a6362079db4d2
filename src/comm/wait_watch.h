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
/// looks only while the rank neither starts nor ends a collective.
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
  /// How often to look, and for how long to wait for answers.
  struct Pace {
    Duration tick;
    Duration still;  ///< after which questions of others are looked for
    Duration period;
    Duration patience;
  };

  void run();
  void tick();
  Pace pace() const;
  void notice_moves(const std::vector<Standing>& standings);
  bool notice_wait(const std::vector<Standing>& standings);
  void ask();
  void receive();
  WaitNote make_note() const;
  WaitReport own_report(const std::string& trouble) const;
  void finish(const WaitReport& report);

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
  uint64_t moves_ = 0;
  Clock::time_point last_move_ = Clock::now();
  /// The wait that was told of: its backend and its number.
  std::optional<std::pair<size_t, uint64_t>> noticed_;
  int64_t signals_;
  /// Since when the ranks are being asked, and whether the report belongs into the log.
  std::optional<Clock::time_point> asked_;
  bool logs_ = false;
  /// When the last report came.
  std::optional<Clock::time_point> reported_;
  /// explain() counts callers and reports.
  bool is_wanted_ = false;
  uint64_t reports_ = 0;
  std::string last_report_;
  std::thread thread_;
};

}  // namespace fairshard::comm

#pragma once
// Finishes started collectives in the background, one after another, on one thread per backend.

#include "direct_work.h"
#include "standing.h"
#include "verdict.h"

#include <c10/util/intrusive_ptr.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace fairshard::comm {

class Progress {
 public:
  Progress() = default;
  ~Progress() { stop(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void submit(c10::intrusive_ptr<DirectWork> work);
  /// Returns when all that was submitted has ended, well or not.
  void flush();
  /// Ends what is under way with an error; blocks on no peer.
  void stop();

  /// The first failure's message, or nothing.
  std::string failure() const;
  /// Blocks on no peer.
  Standing standing() const;
  /// What errors of collectives that have waited too long shall say as well.
  void explain_timeouts(std::shared_ptr<const Verdict> verdict);

 private:
  using WorkPtr = c10::intrusive_ptr<DirectWork>;

  void run();
  void start_submitted(std::unique_lock<std::mutex>& lock);
  bool step(DirectWork& work);
  std::string explanation() const;
  void fail(DirectWork& work, const std::string& error);

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::deque<WorkPtr> queue_;
  std::vector<WorkPtr> submitted_;  ///< and not started
  /// What run() has taken from the queue, and what it is in the midst of.
  WorkPtr current_;
  std::shared_ptr<Operation> running_;
  /// Messages of failed collectives may still arrive: their buffers live as long as the backend.
  std::vector<std::shared_ptr<Operation>> failed_;
  std::string failure_;
  /// For standing().
  std::optional<Call> last_;
  Instant last_ended_;
  uint64_t started_ = 0;  ///< their number
  uint64_t ended_count_ = 0;
  Awaited awaited_;
  std::shared_ptr<const Verdict> verdict_;
  bool stop_ = false;
  bool is_stepping_ = false;
  std::thread thread_;
};

}  // namespace fairshard::comm

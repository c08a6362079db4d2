#pragma once
// Finishes started collectives in the background, one after another, on one thread per backend.

#include "direct_work.h"

#include <c10/util/intrusive_ptr.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
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

 private:
  using WorkPtr = c10::intrusive_ptr<DirectWork>;

  void run();
  void start_submitted(std::unique_lock<std::mutex>& lock);
  bool step(DirectWork& work);
  void fail(DirectWork& work, const std::string& error);

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::deque<WorkPtr> queue_;
  std::vector<WorkPtr> submitted_;  ///< and not started
  /// What run() is in the midst of.
  std::shared_ptr<Operation> running_;
  /// Messages of failed collectives may still arrive: their buffers live as long as the backend.
  std::vector<std::shared_ptr<Operation>> failed_;
  std::string failure_;
  bool stop_ = false;
  bool is_stepping_ = false;
  std::thread thread_;
};

}  // namespace fairshard::comm

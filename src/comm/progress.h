#pragma once
// Finishes started collectives in the background, one after another, on one thread per group.

#include "call.h"
#include <fairshard/comm/work.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace fairshard::comm {

using Deadline = std::chrono::steady_clock::time_point;

/// A started collective as the progress thread sees it.
///
/// Note [Long sends]: Gloo writes to a socket at once, on the thread that posts, if the peer is
/// ready to receive. For megabytes that takes milliseconds, and the caller is often in the midst of
/// backward, with a team of OpenMP threads that waits for it. So long messages are not posted where
/// a collective is called, but by the progress thread. Short ones are: another thread would cost
/// more time to wake.
class Operation {
 public:
  virtual ~Operation() = default;
  /// Posts what is long. Called once, before advance(), as soon as no other advance() is running.
  virtual void start() {}
  /// Waits for what has been posted and does what follows. Returns whether all is done; if not, it
  /// has posted more and is called again, after the collectives behind it.
  virtual bool advance(Deadline deadline) = 0;
  /// Makes a running advance() throw. Called from another thread.
  virtual void abort() = 0;
};

class Progress {
 public:
  Progress() = default;
  /// Ends what is under way with an error; blocks on no peer.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  std::shared_ptr<Pending> submit(const Call& call, std::shared_ptr<Operation> operation,
                                  std::chrono::milliseconds timeout);

  /// The first failure's message, or nothing.
  std::string failure() const;

  /// How long callers have waited for what was submitted.
  std::chrono::nanoseconds waited() const { return *waited_; }

 private:
  struct Task;
  using Waited = std::atomic<std::chrono::nanoseconds>;

  void run();
  void start_submitted(std::unique_lock<std::mutex>& lock);
  bool step(Task& task);
  void finish(Task& task, std::string error);
  void forget_running();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Task>> queue_;
  std::vector<std::shared_ptr<Task>> submitted_;  ///< and not started
  /// What run() is in the midst of.
  std::shared_ptr<Operation> running_;
  /// Messages of failed collectives may still arrive: their buffers live as long as the group.
  std::vector<std::shared_ptr<Operation>> failed_;
  std::string failure_;
  bool stop_ = false;
  /// Shared with tasks, which may outlive this.
  std::shared_ptr<Waited> waited_ = std::make_shared<Waited>(std::chrono::nanoseconds(0));
  std::thread thread_;
};

}  // namespace fairshard::comm

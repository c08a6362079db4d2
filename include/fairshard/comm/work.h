#pragma once
// A handle on a collective that has been started.

#include <chrono>
#include <memory>
#include <utility>

namespace fairshard::comm {

/// What a backend does behind a Work.
class Pending {
 public:
  virtual ~Pending() = default;
  /// See Work::wait().
  virtual void wait() = 0;
  /// See Work::is_done().
  virtual bool is_done() const = 0;
  /// See Work::is_done_within().
  virtual bool is_done_within(std::chrono::milliseconds time) = 0;
};

/// A started collective. It keeps its group alive, and the group keeps the tensors alive until the
/// collective has ended, also when the handle is dropped. A default-made Work is done.
class Work {
 public:
  Work() = default;
  /// For backends.
  Work(std::shared_ptr<void> group, std::shared_ptr<Pending> pending)
      : group_(std::move(group)), pending_(std::move(pending)) {}

  /// Blocks until the results are in place, at most for the group's timeout. For CUDA tensors over
  /// NCCL it is the current stream that waits. Throws c10::DistBackendError with the collective,
  /// its label, the rank and the reason. Calling it again is harmless.
  void wait() {
    if (pending_) {
      pending_->wait();
    }
  }

  /// Whether wait() would return or throw at once.
  bool is_done() const { return !pending_ || pending_->is_done(); }
  /// The same, but waits for it, and at most this long.
  bool is_done_within(std::chrono::milliseconds time) {
    return !pending_ || pending_->is_done_within(time);
  }

 private:
  std::shared_ptr<void> group_;
  std::shared_ptr<Pending> pending_;
};

}  // namespace fairshard::comm

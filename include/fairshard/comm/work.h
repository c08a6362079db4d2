#pragma once
// A handle on a collective that has been started.

#include <chrono>
#include <memory>
#include <utility>

namespace fairshard::comm {

/// A started collective: a c10d::Work with what belongs to it. Backends keep the tensors alive
/// until the collective has ended, also when the handle is dropped. A default-made Work is done.
class Work {
 public:
  struct State;

  Work() = default;
  /// For comm/.
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Makes the results available: for CPU tensors it blocks until they are in place, at most for
  /// the group's timeout; for others it is the current stream that waits, and this returns at once.
  /// Throws c10::DistBackendError with the collective, its label, the rank and the reason. Calling
  /// it again is harmless.
  void wait();

  /// Whether the collective has ended.
  bool is_done() const;
  /// The same, but waits for it, and at most this long.
  bool is_done_within(std::chrono::milliseconds time);

 private:
  std::shared_ptr<State> state_;
};

}  // namespace fairshard::comm

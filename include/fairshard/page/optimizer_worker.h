#pragma once
// Steps slices on the CPU while the backward of earlier slices runs: as soon as a slice's gradients
// are in host memory, its weights are stepped there. What is left when backward ends is stepped
// while the next forward runs, which waits for each slice that it needs.

#include <fairshard/comm/process_owned.h>
#include <fairshard/page/pager.h>
#include <fairshard/page/step_options.h>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <memory>
#include <unordered_map>

namespace fairshard::page {

/// Takes a pager's gradients. Options and states are given before a backward; the parameters'
/// gradients stay empty.
///
/// Note [Order of steps]: gradients come from the last slice to the first, and the next forward
/// needs the first slice first. So of all that has come, the first slice is stepped first.
class OptimizerWorker {
 public:
  /// `threads` step at a time (0: all cores but two, which copies and kernel launches need).
  OptimizerWorker(std::shared_ptr<Pager> pager, int64_t threads);
  /// Ends the threads when all that has arrived is stepped.
  ~OptimizerWorker();
  OptimizerWorker(const OptimizerWorker&) = delete;
  OptimizerWorker& operator=(const OptimizerWorker&) = delete;

  /// How a parameter is stepped from now on. A gradient of a parameter without a plan is an error
  /// of the next wait().
  void plan(const at::Tensor& parameter, const StepOptions& options, const StepState& state);
  /// Parameters that require a gradient and have no plan: their gradients would be lost.
  std::vector<at::Tensor> without_plan() const;
  /// A state of this parameter, in memory of the same kind: `state` itself if it is there already,
  /// a copy if it is elsewhere (from a checkpoint, say), and zeros if it is undefined.
  at::Tensor home_of(const at::Tensor& state, const at::Tensor& parameter);

  /// While it is off, gradients add up in .grad, and are stepped by the next backward with it on.
  void set_stepping(bool is_on);

  /// Returns when all that has arrived is stepped. Throws what went wrong in doing so.
  void wait();
  /// Returns when plans may change, because all that has arrived goes by those it had. Throws what
  /// went wrong with that.
  void wait_for_plans();

  /// Of the last backward: the time that a thread spent stepping, on average, and the elements.
  double busy_s() const;
  int64_t elements() const;

 private:
  class Threads;
  std::shared_ptr<Pager> pager_;
  comm::ProcessOwned<Threads> threads_;
  /// Of states that home_of() has given. Weak: an optimizer may have dropped them.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> homes_;
};

}  // namespace fairshard::page

#pragma once
// Values that are being gathered, and tensors that wait for them when they are read.

#include <fairshard/comm/work.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <mutex>

namespace fairshard::shard {

/// The gather of one bucket's values, from one step to the next.
class ArrivingValues {
 public:
  /// `work` brings values to `arrival`; those of `target` follow, if that is another tensor.
  void start(comm::Work work, at::Tensor arrival, at::Tensor target);
  /// Returns when all values are in place. Any thread may call it, any number of times.
  void wait();
  /// What brings them.
  comm::Work work() const;

 private:
  mutable std::mutex mutex_;
  comm::Work work_;
  /// Defined until values have gone on from one to the other.
  at::Tensor arrival_;
  at::Tensor target_;
};

/// Note [Reading what is being gathered]: after a step, with overlap_gather, a parameter's values
/// are on their way until its block runs. Whoever reads it before (a module above that looks at the
/// weights of those below it, a hook, a moving average between two steps) would read old ones.
/// Until then the parameter is a tensor like it that has a dispatch key: any operator that is given
/// it waits, makes it the parameter that it was, and goes on. The key is that of
/// Note [Handles in .grad]; what torch makes of such a tensor without an operator (.data, detached
/// copies) has it, too. An address asked for without an operator, data_ptr(), is refused.
at::Tensor make_awaited(std::shared_ptr<ArrivingValues> values, const at::Tensor& place);

/// Makes a parameter what `other` is, which differs from it by its memory and its keys alone.
/// Quicker than set_data, which asks for operators.
void become(const at::Tensor& parameter, const at::Tensor& other);

/// Waits for the awaited tensors among an operator's arguments. Returns whether there were any.
bool wait_for_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace fairshard::shard

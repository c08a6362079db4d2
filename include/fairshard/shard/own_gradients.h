#pragma once
// What a rank has of the reduced gradients.

#include <fairshard/shard/plan.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace fairshard::shard {

class FlatParameters;
struct Slice;

/// The gradients of what this rank owns: a range for every bucket of FlatParameters, which a
/// GradReducer fills and an optimizer reads. Where a parameter has a .grad of its own (under
/// torch's DDP, or set by hand), that counts instead. Local, but for follow_plan().
class OwnGradients {
 public:
  /// Without any.
  explicit OwnGradients(const FlatParameters& parameters);

  // For the reducer.

  /// Says that a backward begins: it adds to what is there, unless a step has used that.
  void begin_backward();
  /// This rank's range of a bucket, to be filled.
  at::Tensor range(size_t bucket);
  /// Has a bucket's gradients reduced within `flat`, which is laid out like it: this rank's range
  /// of that is its gradient range until the bucket is stepped.
  void reduce_within(size_t bucket, const at::Tensor& flat);
  /// Says that a bucket's range has been filled or added to, and which parameters had a gradient
  /// on any rank.
  void deliver(size_t bucket, const std::vector<bool>& has_gradient);
  /// Whether a bucket's range has been filled.
  bool are_delivered(size_t bucket) const { return is_delivered_[bucket]; }

  // For who steps.

  /// The gradient for a slice, or an undefined tensor if there is none.
  at::Tensor of(const Slice& slice) const;
  /// Parameters with this rank's part of their gradients, where there is one.
  std::vector<std::pair<at::Tensor, at::Tensor>> by_parameter() const;
  /// All memory that gradients of this rank lie in, to be scaled: delivered ranges and whole
  /// .grads.
  std::vector<at::Tensor> memory() const;
  /// Says that a step has used them: the next backward begins anew instead of adding.
  void mark_used() { is_used_ = true; }
  /// Forgets what was delivered; what zero_grad means for it.
  void clear();
  /// Forgets a bucket's, and frees their memory.
  void drop(size_t bucket);

  // For FlatParameters.

  /// Follows a bucket whose parameters have another dtype now.
  void follow_dtype(size_t bucket);
  /// Takes what was delivered for an earlier plan to its new owners. Collective; blocks.
  void follow_plan(const ShardPlan& old);

  /// Whether a backward since the last reduction has left gradients in .grad unreduced.
  bool await_reduction = false;
  /// The scaler of the loss whose gradients were delivered, while they are still scaled, or 0.
  int64_t scaled_by = 0;

 private:
  void make_room();

  const FlatParameters& parameters_;
  std::vector<at::Tensor> ranges_;
  std::vector<bool> is_delivered_;
  /// Of each parameter.
  std::vector<bool> has_gradient_;
  bool is_used_ = false;
};

/// The parameters of all parts with this rank's part of their gradients, to be compared with each
/// rank's own. Throws within join(), where some ranks have none.
std::vector<std::pair<at::Tensor, at::Tensor>> gradients_to_compare(
    const std::vector<std::shared_ptr<FlatParameters>>& parts);

}  // namespace fairshard::shard

#pragma once
// What a rank has of the reduced gradients.

#include <fairshard/comm/group.h>
#include <fairshard/shard/layout.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

namespace fairshard::shard {

/// A range of a parameter that a rank owns: what an optimizer steps. `values` is a leaf; it shares
/// memory with the parameter, or is of its master weights (see Precision). It has the parameter's
/// shape if it is all of it and the layout is one of whole tensors, and is flat otherwise.
struct Slice {
  Piece piece;
  at::Tensor values;
};

/// The gradients of what this rank owns: a range for every bucket, which a GradReducer fills and a
/// ShardedStep reads. Where a parameter has a .grad of its own (under torch's DDP, or set by hand),
/// that counts instead. Local, but for relayout().
class GradientShards {
 public:
  GradientShards(std::shared_ptr<const ShardLayout> layout, int rank,
                 std::shared_ptr<const std::vector<Parameter>> parameters);

  // For the reducer.

  /// Says that a backward begins: it adds to what is there, unless a step has used that.
  void begin_backward();
  /// This rank's range of a bucket, to be filled.
  at::Tensor range(size_t bucket);
  /// Has a bucket's gradients reduced within other memory, until they are dropped.
  void reduce_into(size_t bucket, at::Tensor range) { ranges_[bucket] = std::move(range); }
  /// Says that a bucket's range has been filled or added to, and which parameters had a gradient
  /// on any rank.
  void publish(size_t bucket, const std::vector<bool>& has_gradient);
  /// Whether a bucket's range has been filled.
  bool has(size_t bucket) const { return is_filled_[bucket]; }

  // For the step.

  /// The gradient for a slice, or an undefined tensor if there is none.
  at::Tensor of(const Slice& slice) const;
  /// All memory that gradients of this rank lie in, to be scaled: filled ranges and whole .grads.
  std::vector<at::Tensor> memory() const;
  /// Says that a step has used them: the next backward begins anew instead of adding.
  void mark_used() { is_used_ = true; }
  /// Whether there are gradients that no step has used.
  bool has_unused() const;
  /// Forgets all; what zero_grad means for it.
  void clear();
  /// Forgets a bucket's, and frees their memory.
  void drop(size_t bucket);
  /// Whether backwards within no_sync() have left gradients in .grad that nobody has reduced.
  bool await_reduction() const { return await_reduction_; }
  void set_await_reduction(bool do_await) { await_reduction_ = do_await; }
  /// The scaler of the loss whose gradients these are, while they are still scaled, or 0.
  int64_t scaled_by() const { return scaled_by_; }
  void set_scaled_by(int64_t scaler) { scaled_by_ = scaler; }

  // For FlatGroup.

  /// In which dtype and on which device a bucket is stepped.
  void set_options(size_t bucket, const at::TensorOptions& options);
  /// Takes what was filled to its owners in another layout, in which this rank has `slices`.
  /// Collective; blocks.
  void relayout(const comm::Group& group, std::shared_ptr<const ShardLayout> layout,
                const std::vector<Slice>& slices, const std::vector<at::TensorOptions>& options);

 private:
  std::shared_ptr<const ShardLayout> layout_;
  int rank_;
  std::shared_ptr<const std::vector<Parameter>> parameters_;
  std::vector<at::TensorOptions> options_;
  std::vector<at::Tensor> ranges_;
  std::vector<bool> is_filled_;
  /// Of each parameter.
  std::vector<bool> has_gradient_;
  bool is_used_ = false;
  bool await_reduction_ = false;
  int64_t scaled_by_ = 0;
};

}  // namespace fairshard::shard

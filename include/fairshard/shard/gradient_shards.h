#pragma once
// What a rank has of the reduced gradients.

#include <fairshard/comm/group.h>
#include <fairshard/shard/grad_handle.h>
#include <fairshard/shard/layout.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
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
/// ShardedStep reads. The parameters have handles on them in .grad; see Note [Handles in .grad].
/// Where a parameter has a .grad of its own (under torch's DDP, or set by hand), that counts
/// instead. Local, where nothing else is said.
class GradientShards final : public ShardedGradients,
                             public std::enable_shared_from_this<GradientShards> {
 public:
  /// With `are_stepped_in_backward` nobody may look at them.
  GradientShards(comm::Group group, std::shared_ptr<const ShardLayout> layout,
                 std::shared_ptr<const std::vector<Parameter>> parameters,
                 bool are_stepped_in_backward);
  /// Takes its handles out of .grad.
  ~GradientShards() override { clear(); }
  GradientShards(const GradientShards&) = delete;
  GradientShards& operator=(const GradientShards&) = delete;

  // For the reducer.

  /// Says that a backward begins: it adds to what is there, less what the user has dropped.
  void begin_backward() { forget_dropped(); }
  /// Takes a parameter's handle out of .grad, where autograd is about to put this rank's gradient.
  void stash(size_t parameter);
  /// This rank's range of a bucket, to be filled.
  at::Tensor range(size_t bucket);
  /// Has a bucket's gradients reduced within other memory, until they are dropped.
  void reduce_into(size_t bucket, at::Tensor range) { ranges_[bucket] = std::move(range); }
  /// Says that a bucket's range has been filled or added to, and which parameters had a gradient
  /// on any rank.
  void publish(size_t bucket, const std::vector<bool>& has_gradient);
  /// Puts handles into .grad of a bucket's parameters.
  void expose(size_t bucket);
  /// Whether a bucket's range has been filled.
  bool has(size_t bucket) const { return is_filled_[bucket]; }
  /// Whether there are any gradients that the user has not dropped.
  bool has_any() const;

  // For the step.

  /// The gradient for a slice, or an undefined tensor if there is none.
  at::Tensor of(const Slice& slice) const;
  /// All memory that gradients of this rank lie in, to be scaled: filled ranges and whole .grads.
  std::vector<at::Tensor> memory();
  /// Forgets all, and takes handles out of .grad: what zero_grad means for it.
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
  void relayout(std::shared_ptr<const ShardLayout> layout, const std::vector<Slice>& slices,
                const std::vector<at::TensorOptions>& options);

  // For handles.

  at::Tensor shard_of(size_t parameter) override;
  at::Tensor norm_of(size_t parameter, double norm_type) override;
  void mark_changed() override { norms_.reset(); }
  void reduce_flag(const at::Tensor& flag) const override;
  std::string name_of(size_t parameter) const override { return (*parameters_)[parameter].name; }

 private:
  /// Of a parameter's gradient: there is none; it was reduced; it was, and .grad has a handle on
  /// it; it was, and .grad has what this rank has added since.
  enum class State { kNone, kReduced, kExposed, kStashed };
  struct Norms {
    double type;
    at::Tensor values;
  };

  bool is_dropped(size_t parameter) const;
  void forget_dropped();
  void find_own_pieces();
  at::Tensor measure_norms(double norm_type);

  comm::Group group_;
  std::shared_ptr<const ShardLayout> layout_;
  std::shared_ptr<const std::vector<Parameter>> parameters_;
  bool are_stepped_in_backward_;
  std::vector<at::TensorOptions> options_;
  std::vector<at::Tensor> ranges_;
  std::vector<bool> is_filled_;
  /// Of each parameter: its state, its handle, and what this rank owns of it.
  std::vector<State> states_;
  std::vector<at::Tensor> handles_;
  std::vector<std::optional<Piece>> own_pieces_;
  /// Of all parameters, if they were asked for since the last change.
  std::optional<Norms> norms_;
  bool await_reduction_ = false;
  int64_t scaled_by_ = 0;
};

}  // namespace fairshard::shard

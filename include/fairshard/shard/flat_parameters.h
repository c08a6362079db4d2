#pragma once
// Parameters in the memory layout of a ShardPlan.

#include <fairshard/comm/collectives.h>
#include <fairshard/comm/group.h>
#include <fairshard/shard/join.h>
#include <fairshard/shard/own_gradients.h>
#include <fairshard/shard/plan.h>
#include <fairshard/shard/released_values.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace fairshard::shard {

/// What FlatParameters are made with.
struct FlatOptions {
  /// How parameters are divided among ranks and buckets.
  TORCH_ARG(PlanOptions, plan);

  // Behaviour
  /// Parameters in float16 and bfloat16 are stepped in float32: each rank keeps such a copy of what
  /// it owns.
  TORCH_ARG(bool, master_weights) = false;

  // Performance
  /// Blocks that have run forward keep no parameters; see Note [Released values].
  TORCH_ARG(bool, release_values) = false;
  /// With release_values: what was stepped is gathered by the next forward, block by block.
  TORCH_ARG(bool, gather_in_forward) = false;
  /// The dtype in which parameters are gathered. If it is narrower than their own, all ranks have
  /// the rounded values, and each keeps an exact copy of what it owns.
  TORCH_ARG(std::optional<at::ScalarType>, gather_dtype);
};

/// A part of a parameter that a rank owns: what an optimizer steps. `values` is a leaf; it shares
/// memory with the parameter, or is an exact copy (see FlatOptions). It has the parameter's shape
/// if it is all of it and the plan is one of whole tensors, and is flat otherwise.
struct Slice {
  Piece piece;
  at::Tensor values;
};

/// Moves parameters into one flat buffer per bucket, in place (the parameters become views of it
/// and keep their sizes and strides), so that a bucket is gathered without any packing. Shared
/// between an optimizer, which reads gradients and writes values, and a GradReducer, which delivers
/// gradients. Tensors that are not floating point or empty are left alone; a parameter given twice
/// is taken once.
class FlatParameters {
 public:
  /// Collective: checks that all ranks have the same parameters.
  FlatParameters(comm::Group group, const std::vector<Parameter>& parameters,
                 const FlatOptions& options = {});
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  const comm::Group& group() const { return group_; }
  const ShardPlan& plan() const { return plan_; }
  /// The parameters that are laid out, in the plan's numbering.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Slice>& slices() const { return slices_; }
  /// What another rank owns, as views of the parameters.
  std::vector<Slice> slices_of(int rank) const;
  const at::Tensor& bucket(size_t index) const { return buckets_[index]; }
  /// The part of a bucket that this rank owns; the same part of `flat`, which is laid out like it.
  at::Tensor own_range(size_t bucket) const;
  at::Tensor own_range_of(size_t bucket, const at::Tensor& flat) const;
  /// The dtype and device in which this rank steps its part of a bucket.
  at::TensorOptions stepped_options(size_t bucket) const;
  /// Whether the slices of a bucket are exact copies; see FlatOptions.
  bool has_copy(size_t bucket) const { return copies_[bucket].defined(); }
  void rename(size_t parameter, const std::string& name) { parameters_[parameter].name = name; }
  /// The part of `flat`, laid out like a bucket, that has a parameter's sizes and strides.
  at::Tensor view_of(size_t parameter, const at::Tensor& flat) const;

  // The layout may change, at moments that are the same on all ranks.

  /// Grows when `slices()` have other tensors (after reorder) or tensors of another dtype.
  int revision() const { return revision_; }
  /// Takes up parameters whose data was replaced since, for instance by a module's to(dtype).
  /// Throws if one of them has another device or shape, or has left its bucket's dtype alone.
  /// Local.
  void adopt_replaced();
  /// Plans anew for gradients that arrive in this order, if other buckets come of it. Collective;
  /// blocks. Only until settle().
  void reorder(const std::vector<size_t>& order);
  /// Says that an optimizer has state for the slices.
  void settle() { is_settled_ = true; }
  bool is_settled() const { return is_settled_; }

  /// The gradients of what this rank owns.
  OwnGradients& gradients() { return gradients_; }
  const OwnGradients& gradients() const { return gradients_; }

  // Values.

  /// To be called before the slices are stepped: refuses gradients that are still scaled, and
  /// follows the parameters.
  void before_step();
  /// Exact copies follow parameters that were changed in place (not through .data, which autograd
  /// does not see) or replaced. Local, but waits for values.
  void follow_parameters();
  /// Makes the parameters of all ranks what exact copies say, if there are any. Collective; blocks.
  void publish_copies();
  /// Starts to bring every rank's ranges to all, or has the next forward do so. Collective; does
  /// not block.
  void start_gather();
  /// Returns when all parameters, or one, are in place. Collective if values are released.
  void wait_for_values();
  void wait_for_value(size_t parameter);
  void wait_for_bucket(size_t bucket);
  /// What releases values, if they are to be.
  const std::shared_ptr<ReleasedValues>& released() const { return released_; }
  /// Makes all ranks' values those of `root`. Collective; blocks.
  void broadcast(int root);

  // Steps in backward.

  /// Set by an optimizer that steps a bucket as soon as its gradients are reduced: steps this
  /// rank's slices of one bucket. See Note [Steps in backward] in grad_reducer.h.
  std::function<void(size_t bucket)> on_reduced;
  /// Has a bucket stepped by `on_reduced`, drops its gradients and starts to gather it, if not the
  /// next forward does so. Collective.
  void step_bucket(size_t bucket);
  /// Whether any bucket was stepped since the last time that this was asked.
  bool take_was_stepped() { return std::exchange(was_stepped_, false); }
  bool was_stepped() const { return was_stepped_; }
  /// Does the same for all buckets, for whatever gradients there are. Collective.
  void step_all_buckets();

  /// Set while ranks may run out of inputs; see Join.
  std::shared_ptr<Join> join;

 private:
  struct Gather {
    comm::Work work;
    /// What arrives, if it is not the bucket itself.
    at::Tensor narrow;
  };

  void allocate();
  void make_slices();
  bool needs_copy(size_t bucket) const;
  at::ScalarType gather_dtype(size_t bucket) const;
  bool has_changed(size_t parameter);
  void adopt_bucket(size_t bucket);
  void gather_bucket(size_t bucket);

  comm::Group group_;
  FlatOptions options_;
  std::vector<Parameter> parameters_;
  ShardPlan plan_;
  std::vector<at::Tensor> buckets_;
  /// Exact copies of this rank's ranges, where it needs them.
  std::vector<at::Tensor> copies_;
  std::vector<Slice> slices_;
  OwnGradients gradients_;
  /// How often each parameter had been written to when its exact copy was last compared with it.
  std::vector<int64_t> versions_;
  std::vector<std::optional<Gather>> gathers_;
  std::shared_ptr<ReleasedValues> released_;
  bool was_stepped_ = false;
  bool is_settled_ = false;
  int revision_ = 0;
};

}  // namespace fairshard::shard

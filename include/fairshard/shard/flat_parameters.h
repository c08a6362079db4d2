#pragma once
// Parameters in the memory layout of a ShardPlan, and the gradients of what this rank owns.

#include <fairshard/comm/collectives.h>
#include <fairshard/comm/group.h>
#include <fairshard/shard/plan.h>

#include <memory>
#include <vector>

namespace fairshard::shard {

/// A part of a parameter that this rank owns: what an optimizer steps. `values` is a leaf that
/// shares memory with the parameter.
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
                 const PlanOptions& options = {});

  const comm::Group& group() const { return group_; }
  const ShardPlan& plan() const { return plan_; }
  /// The parameters that are laid out, in the plan's numbering.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<Slice>& slices() const { return slices_; }
  const at::Tensor& bucket(size_t index) const { return buckets_[index]; }
  void rename(size_t parameter, const std::string& name) { parameters_[parameter].name = name; }
  /// Throws if a parameter no longer lies in its bucket, because it was moved or replaced.
  void check_in_place() const;
  /// The part of `flat`, laid out like a bucket, that has a parameter's sizes and strides.
  at::Tensor view_of(size_t parameter, const at::Tensor& flat) const;

  /// This rank's range of a bucket's reduced gradients, for the reducer to fill.
  at::Tensor gradient_range(size_t bucket);
  bool has_gradients(size_t bucket) const;
  /// Called by the reducer when a bucket's range has been filled or added to: which parameters had
  /// a gradient on any rank.
  void deliver(size_t bucket, const std::vector<bool>& has_gradient);
  /// Forgets delivered gradients; what zero_grad means for them.
  void clear_gradients();
  /// Says that a step has used the gradients: the next backward begins anew instead of adding.
  void mark_used() { is_used_ = true; }
  /// Called by the reducer before it delivers the first gradient of a backward.
  void begin_backward();

  /// The gradient for a slice: what the reducer delivered, or else this part of the parameter's own
  /// .grad (under torch's DDP, or set by hand), or an undefined tensor if there is none.
  at::Tensor gradient_of(const Slice& slice) const;

  /// Starts to bring every rank's ranges to all. Collective; does not block.
  void start_gather();
  /// Returns when what start_gather() started is in place.
  void wait_for_values();
  /// Makes all ranks' values those of `root`. Collective; blocks.
  void broadcast(int root);

 private:
  comm::Group group_;
  std::vector<Parameter> parameters_;
  ShardPlan plan_;
  std::vector<at::Tensor> buckets_;
  std::vector<Slice> slices_;
  std::vector<at::Tensor> gradient_ranges_;
  std::vector<bool> is_delivered_;
  std::vector<bool> has_gradient_;
  bool is_used_ = false;
  std::vector<comm::Work> gathers_;
};

}  // namespace fairshard::shard

#pragma once
// Parameters that are sharded together, in the memory layout of a ShardLayout.

#include <fairshard/comm/mesh.h>
#include <fairshard/shard/flat_bucket.h>
#include <fairshard/shard/gradient_shards.h>
#include <fairshard/shard/layout.h>
#include <fairshard/shard/unshard_schedule.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fairshard::shard {

/// What a FlatGroup is made with.
struct FlatOptions {
  /// How parameters are partitioned into buckets and across ranks.
  TORCH_ARG(LayoutOptions, layout);

  // Behaviour
  /// In which precision they are stepped and gathered.
  TORCH_ARG(Precision, precision);

  // Performance
  /// Backward steps each bucket as soon as its gradients are reduced; see Note [Steps in backward].
  TORCH_ARG(bool, step_in_backward) = false;
  /// Blocks that have run forward keep no parameters; see Note [Resharding].
  TORCH_ARG(bool, reshard_after_forward) = false;
  /// With reshard_after_forward: what was stepped is gathered by the next forward, block by block.
  TORCH_ARG(bool, reshard_after_step) = false;
};

/// Parameters with their layout, their values in it, and this rank's gradients. Tensors that are
/// neither floating point nor complex, or empty, are left alone; a parameter given twice is taken
/// once. Local, where nothing else is said.
class FlatGroup {
 public:
  /// The same parameters on all ranks; see check_same_parameters(). Moves them in place. Collective
  /// with reshard_after_forward.
  FlatGroup(comm::Mesh mesh, const std::vector<Parameter>& parameters,
            const FlatOptions& options = {});
  FlatGroup(const FlatGroup&) = delete;
  FlatGroup& operator=(const FlatGroup&) = delete;

  const comm::Mesh& mesh() const { return mesh_; }
  /// The ranks that they are partitioned across.
  const comm::Group& group() const { return mesh_.shards(); }
  const FlatOptions& options() const { return options_; }
  const ShardLayout& layout() const { return *layout_; }
  /// Grows when slices() have other tensors (after relayout) or tensors of another kind.
  int layout_version() const { return layout_version_; }
  /// In the layout's numbering.
  const std::vector<Parameter>& parameters() const { return *parameters_; }
  void rename(size_t parameter, const std::string& name) { (*parameters_)[parameter].name = name; }
  const FlatBucket& bucket(size_t index) const { return buckets_[index]; }
  /// What this rank owns, and what another does, as views of the parameters.
  const std::vector<Slice>& slices() const { return slices_; }
  std::vector<Slice> slices_of(int rank) const;
  GradientShards& gradients() { return *gradients_; }
  const GradientShards& gradients() const { return *gradients_; }
  /// What reshards the parameters, if anything does.
  const std::shared_ptr<UnshardSchedule>& schedule() const { return schedule_; }

  // The layout may change, at moments that are the same on all ranks.

  /// Takes up parameters whose data was replaced since, for instance by a module's to(dtype) or
  /// to(device). Throws if one of them does not fit any more.
  void rebind();
  /// Makes a layout for gradients that arrive in this order, and moves all to it. Only while the
  /// layout is not frozen. Collective; blocks.
  void relayout(const std::vector<size_t>& order);
  /// Says that an optimizer has state for the slices.
  void freeze_layout() { is_layout_frozen_ = true; }
  bool is_layout_frozen() const { return is_layout_frozen_; }

  // Values.

  /// Says that this rank's range of a bucket was stepped, and starts to gather the bucket, unless
  /// the next forward does so. Collective; does not block.
  void publish(size_t bucket);
  /// Starts to gather all. Collective; does not block.
  void start_gather();
  /// Returns when all values, or those of a bucket, are in place. Collective if they are resharded.
  void wait_for_values();
  void wait_for_bucket(size_t bucket);
  /// Has master weights follow parameters that were changed in place or replaced.
  void update_masters();
  bool has_masters() const;
  /// Makes the parameters of all ranks what master weights say, if there are any. Collective;
  /// blocks.
  void publish_masters();
  /// Makes all ranks' values those of `root`. Collective; blocks.
  void broadcast(int root);

 private:
  void allocate();
  void make_slices();
  std::vector<at::TensorOptions> stepped_options() const;

  comm::Mesh mesh_;
  FlatOptions options_;
  std::shared_ptr<std::vector<Parameter>> parameters_;
  std::shared_ptr<const ShardLayout> layout_;
  std::vector<FlatBucket> buckets_;
  std::vector<Slice> slices_;
  std::shared_ptr<GradientShards> gradients_;
  std::shared_ptr<UnshardSchedule> schedule_;
  bool is_layout_frozen_ = false;
  int layout_version_ = 0;
};

}  // namespace fairshard::shard

#pragma once
// What a step of an optimizer is when its parameters are sharded.

#include <fairshard/comm/mesh.h>
#include <fairshard/shard/flat_group.h>
#include <fairshard/shard/join.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fairshard::shard {

/// What an optimizer supplies.
struct StepCallbacks {
  /// Steps some of this rank's slices, given for each of the optimizer's parameter groups. Their
  /// gradients are in .grad; what has none is left alone.
  std::function<void(const std::vector<std::vector<at::Tensor>>& slices)> step_slices;
  /// The numbers among its options, and the way to set them: ranks that have joined follow the
  /// learning rates of others.
  std::function<std::vector<double>()> numbers;
  std::function<void(const std::vector<double>&)> set_numbers;
};

/// What a ShardedStep is made with: that of its flat groups, and
struct StepOptions {
  /// How parameters are laid out, stepped and gathered.
  TORCH_ARG(FlatOptions, flat);
  /// A step ends while parameters are still being gathered; the next forward waits for them.
  TORCH_ARG(bool, overlap_gather) = false;
  /// The optimizer may be called for some of its slices and then for the others, so that the first
  /// travel while the others are stepped.
  TORCH_ARG(bool, step_in_parts) = false;
};

/// The sequence of a step, for any optimizer: hand out the gradients of what this rank owns, have
/// the optimizer step these slices, start to gather, wait. It owns the parameters' flat groups, and
/// is found by them.
class ShardedStep : public std::enable_shared_from_this<ShardedStep> {
 public:
  ShardedStep(comm::Mesh mesh, const StepOptions& options, StepCallbacks callbacks);
  ~ShardedStep();
  ShardedStep(const ShardedStep&) = delete;
  ShardedStep& operator=(const ShardedStep&) = delete;

  /// The step to which a parameter belongs, if there is one. Weak: it does not outlive its
  /// optimizer.
  static std::shared_ptr<ShardedStep> of(const at::Tensor& parameter);
  /// Grows whenever of() may have another answer for any parameter.
  static int64_t registry_version();

  /// Shards parameters of new parameter groups, numbered from 0 on. Collective.
  void add(const std::vector<Parameter>& parameters, size_t parameter_groups);

  const comm::Mesh& mesh() const { return mesh_; }
  /// The ranks that parameters are partitioned across.
  const comm::Group& group() const { return mesh_.shards(); }
  const StepOptions& options() const { return options_; }
  /// One for each add().
  const std::vector<std::shared_ptr<FlatGroup>>& flat_groups() const { return flat_groups_; }
  /// The number of a flat group's first parameter group.
  size_t first_group(size_t flat_group) const { return first_groups_[flat_group]; }
  /// What this rank steps, for each parameter group.
  std::vector<std::vector<at::Tensor>> slices() const;
  /// Grows when slices() change.
  int layout_version() const;

  /// Steps. Collective; blocks, but see StepOptions::overlap_gather.
  void run();
  /// Steps one bucket, drops its gradients and starts to gather it, if not the next forward does
  /// so: see Note [Steps in backward]. Collective.
  void run_bucket(FlatGroup& group, size_t bucket);
  /// Throws if another step has taken one of the parameters since.
  void check_has_parameters() const;
  /// Throws if nothing may step in the backward that begins.
  void check_can_run_in_backward() const;

  /// Scales all gradients over all ranks to a norm of at most `max_norm`; see clip_gradients().
  at::Tensor clip(double max_norm, double norm_type,
                  const std::function<bool(const at::Tensor& parameter)>& selects = nullptr);
  /// Brings every element of the gradients into [-most, most]. Local, as all ranks do the same.
  void clip_values(double most);
  /// Returns when all parameters are in place. Collective if they are resharded.
  void wait_for_parameters();
  /// Whether a backward within no_sync() has left gradients that nobody has reduced: a step would
  /// have ranks drift apart.
  bool awaits_reduction() const;
  /// Forgets reduced gradients, beside .grad. Local.
  void clear_gradients();
  /// All memory of this rank that has gradients.
  std::vector<at::Tensor> gradient_memory() const;
  /// The scaler of the loss whose gradients these are, while they are still scaled, or 0.
  int64_t scaled_by() const;
  void set_scaled_by(int64_t scaler);
  /// The parameters with this rank's part of their gradients, where there is one, to be compared
  /// with each rank's own (AdaScale). Throws where that cannot be done.
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_to_compare() const;
  /// Says that the optimizer has a state for the slices.
  void freeze_layout();

  /// Set while ranks may run out of inputs; `number` tells the model's optimizers apart.
  void set_join(std::shared_ptr<Join> join, int number);
  /// Does this rank's share of what others have announced.
  void follow(const Join::Announcement& said);

 private:
  using SlicesByGroup = std::vector<std::vector<at::Tensor>>;

  void announce();
  void run_at_once();
  void run_part(const std::vector<size_t>& begins, const std::vector<size_t>& ends);
  void run_rest_of_backward();
  void step_slices(const std::vector<std::pair<FlatGroup*, const Slice*>>& slices);
  void share_numbers(int leader);
  void note_step();

  comm::Mesh mesh_;
  StepOptions options_;
  StepCallbacks callbacks_;
  std::vector<std::shared_ptr<FlatGroup>> flat_groups_;
  std::vector<size_t> first_groups_;
  size_t parameter_groups_ = 0;
  /// Whether backward has stepped since the last run().
  bool has_run_in_backward_ = false;
  int64_t steps_ = 0;
  /// The registry's version when this was last seen to have its parameters.
  mutable int64_t checked_version_ = -1;
  std::shared_ptr<Join> join_;
  int join_number_ = 0;
};

}  // namespace fairshard::shard

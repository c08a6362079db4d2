#include "weak_registry.h"
#include <fairshard/comm/collectives.h>
#include <fairshard/comm/profiler_range.h>
#include <fairshard/comm/waits.h>
#include <fairshard/shard/agree.h>
#include <fairshard/shard/clip.h>
#include <fairshard/shard/sharded_step.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <numeric>

namespace fairshard::shard {
namespace {

/// Which step has which parameter.
WeakRegistry<c10::TensorImpl, ShardedStep>& registry() {
  static WeakRegistry<c10::TensorImpl, ShardedStep> steps;
  return steps;
}

/// What ranks must have alike, or they would wait for each other in different collectives.
std::string describe(const comm::Mesh& mesh, const StepOptions& options) {
  const FlatOptions& flat = options.flat();
  const auto& gather_dtype = flat.precision().gather_dtype;
  const auto& bucket_bytes = flat.layout().bucket_bytes();
  return c10::str(
      "an OSS with partition=", flat.layout().partition() == Partition::kEven ? "even" : "tensor",
      ", bucket_bytes=", bucket_bytes ? std::to_string(*bucket_bytes) : "default",
      ", overlap_gather=", options.overlap_gather(), ", step_in_backward=", flat.step_in_backward(),
      ", release_parameters=", flat.reshard_after_forward(),
      ", master_weights=", flat.precision().master_weights,
      ", gather_dtype=", gather_dtype ? c10::toString(*gather_dtype) : "none",
      mesh.has_replicas() ? c10::str(", replicas=", mesh.replicas().size()) : "");
}

/// The same on all ranks. Buckets of frozen parameters are not gathered.
bool may_step(const FlatGroup& group, size_t bucket) {
  return group.bucket(bucket).is_trainable() || group.gradients().has(bucket);
}

/// The first of the last buckets that together have a quarter of a flat group's elements: so much
/// is stepped while hardly anything travels, and while it travels the others are stepped.
size_t begin_of_first_part(const ShardLayout& layout) {
  const auto& buckets = layout.buckets();
  const auto add = [](int64_t sum, const Bucket& bucket) { return sum + bucket.length(); };
  const int64_t wanted = std::accumulate(buckets.begin(), buckets.end(), int64_t{0}, add) / 4;
  size_t begin = buckets.size();
  for (int64_t part = 0; begin > 1 && part < wanted;) {
    part += buckets[--begin].length();
  }
  return begin;
}

}  // namespace

ShardedStep::ShardedStep(comm::Mesh mesh, const StepOptions& options, StepCallbacks callbacks)
    : mesh_(std::move(mesh)), options_(options), callbacks_(std::move(callbacks)) {}

ShardedStep::~ShardedStep() {
  for (const auto& group : flat_groups_) {
    for (const Parameter& parameter : group->parameters()) {
      registry().remove(parameter.tensor.unsafeGetTensorImpl());
    }
  }
}

std::shared_ptr<ShardedStep> ShardedStep::of(const at::Tensor& parameter) {
  return registry().find(parameter.unsafeGetTensorImpl());
}

int64_t ShardedStep::registry_version() { return registry().version(); }

void ShardedStep::add(const std::vector<Parameter>& parameters, size_t parameter_groups) {
  TORCH_CHECK_VALUE(!parameters.empty(), "OSS got no parameters");
  check_same_parameters(mesh_.all(), parameters, describe(mesh_, options_));
  flat_groups_.push_back(std::make_shared<FlatGroup>(mesh_, parameters, options_.flat()));
  first_groups_.push_back(parameter_groups_);
  parameter_groups_ += parameter_groups;
  for (const Parameter& parameter : flat_groups_.back()->parameters()) {
    registry().add(parameter.tensor.unsafeGetTensorImpl(), weak_from_this());
  }
}

std::vector<std::vector<at::Tensor>> ShardedStep::slices() const {
  SlicesByGroup result(parameter_groups_);
  for (size_t i = 0; i < flat_groups_.size(); ++i) {
    for (const Slice& slice : flat_groups_[i]->slices()) {
      const auto number = flat_groups_[i]->parameters()[slice.piece.parameter].group;
      result[first_groups_[i] + static_cast<size_t>(number)].push_back(slice.values);
    }
  }
  return result;
}

int ShardedStep::layout_version() const {
  int version = static_cast<int>(flat_groups_.size());
  for (const auto& group : flat_groups_) {
    version += group->layout_version();
  }
  return version;
}

void ShardedStep::run() {
  const at::NoGradGuard no_grad;
  const comm::ProfilerRange range([] { return "step"; });
  check_has_parameters();
  announce();
  TORCH_CHECK(
      scaled_by() == 0,
      "the gradients are those of a scaled loss, and still scaled: call scaler.step(optimizer) "
      "instead of optimizer.step()");
  if (options_.flat().step_in_backward()) {
    run_rest_of_backward();
  } else {
    run_at_once();
  }
  if (!options_.overlap_gather()) {
    wait_for_parameters();
  }
  note_step();
}

/// For whoever asks what ranks wait for.
void ShardedStep::note_step() {
  steps_ += 1;
  comm::note_step(mesh_.all(), steps_);
  if (mesh_.has_replicas()) {
    comm::note_step(mesh_.shards(), steps_);
    comm::note_step(mesh_.replicas(), steps_);
  }
}

void ShardedStep::check_has_parameters() const {
  if (checked_version_ == registry().version()) {
    return;
  }
  for (const auto& group : flat_groups_) {
    for (const Parameter& parameter : group->parameters()) {
      TORCH_CHECK(registry().find(parameter.tensor.unsafeGetTensorImpl()).get() == this,
                  "parameter '", parameter.name,
                  "' of this OSS has since been given to another OSS, which has its values and "
                  "gradients now: a parameter can be in one only");
    }
  }
  checked_version_ = registry().version();
}

/// The last buckets hold the first layers, which the next forward needs first.
void ShardedStep::run_at_once() {
  std::vector<size_t> begins, middles, ends;
  for (const auto& group : flat_groups_) {
    group->update_masters();
    begins.push_back(0);
    ends.push_back(group->layout().buckets().size());
    middles.push_back(options_.step_in_parts() ? begin_of_first_part(group->layout())
                                               : ends.back());
  }
  if (middles != ends) {
    run_part(middles, ends);
  }
  run_part(begins, middles);
}

/// Steps of each flat group the buckets from one to before another, and starts to gather them.
void ShardedStep::run_part(const std::vector<size_t>& begins, const std::vector<size_t>& ends) {
  std::vector<std::pair<FlatGroup*, const Slice*>> part;
  for (size_t i = 0; i < flat_groups_.size(); ++i) {
    for (const Slice& slice : flat_groups_[i]->slices()) {
      if (slice.piece.bucket >= begins[i] && slice.piece.bucket < ends[i]) {
        part.emplace_back(flat_groups_[i].get(), &slice);
      }
    }
  }
  step_slices(part);
  for (size_t i = 0; i < flat_groups_.size(); ++i) {
    for (size_t b = ends[i]; b-- > begins[i];) {
      if (may_step(*flat_groups_[i], b)) {
        flat_groups_[i]->publish(b);
      }
    }
  }
}

/// Backward has done it, but for the first time and where there is no reducer.
void ShardedStep::run_rest_of_backward() {
  if (!std::exchange(has_run_in_backward_, false)) {
    TORCH_CHECK(!flat_groups_[0]->is_layout_frozen() || !gradient_memory().empty(),
                "step() was called without a backward since the last one, and with "
                "step_in_backward its gradients are gone");
    for (const auto& group : flat_groups_) {
      group->update_masters();
      for (size_t b = group->layout().buckets().size(); b-- > 0;) {
        if (may_step(*group, b)) {
          run_bucket(*group, b);
        }
      }
    }
    has_run_in_backward_ = false;
  }
}

void ShardedStep::run_bucket(FlatGroup& group, size_t bucket) {
  const at::NoGradGuard no_grad;
  const comm::ProfilerRange range([&] { return c10::str("step bucket ", bucket); });
  group.wait_for_bucket(bucket);
  std::vector<std::pair<FlatGroup*, const Slice*>> some;
  for (const Slice& slice : group.slices()) {
    if (slice.piece.bucket == bucket) {
      some.emplace_back(&group, &slice);
    }
  }
  step_slices(some);
  has_run_in_backward_ = true;
  group.gradients().drop(bucket);
  group.publish(bucket);
}

/// Hands out the gradients and has the optimizer step.
void ShardedStep::step_slices(const std::vector<std::pair<FlatGroup*, const Slice*>>& slices) {
  SlicesByGroup by_group(parameter_groups_);
  size_t flat_group = 0;
  for (const auto& [group, slice] : slices) {
    while (flat_groups_[flat_group].get() != group) {
      ++flat_group;
    }
    const auto number = group->parameters()[slice->piece.parameter].group;
    slice->values.mutable_grad() = group->gradients().of(*slice);
    by_group[first_groups_[flat_group] + static_cast<size_t>(number)].push_back(slice->values);
  }
  const auto drop = c10::make_scope_exit([&] {
    for (const auto& [group, slice] : slices) {
      slice->values.mutable_grad() = at::Tensor();
    }
  });
  callbacks_.step_slices(by_group);
  freeze_layout();
}

void ShardedStep::check_can_run_in_backward() const {
  TORCH_CHECK(!has_run_in_backward_,
              "with step_in_backward the last backward has stepped already: call the optimizer's "
              "step() after it, or let gradients add up within no_sync()");
}

at::Tensor ShardedStep::clip(double max_norm, double norm_type,
                             const std::function<bool(const at::Tensor&)>& selects) {
  TORCH_CHECK(!options_.flat().step_in_backward(),
              "gradients cannot be clipped with step_in_backward, which drops them one by one");
  if (join_) {
    TORCH_CHECK(!selects, "gradients of some parameters cannot be clipped within join()");
    join_->announce(Join::Action::kClip, {static_cast<double>(join_number_), max_norm, norm_type});
  }
  return clip_gradients(flat_groups_, max_norm, norm_type, selects);
}

void ShardedStep::clip_values(double most) {
  TORCH_CHECK_VALUE(most >= 0, "clip_value is ", most, ", but must not be negative");
  TORCH_CHECK(!options_.flat().step_in_backward(),
              "gradients cannot be clipped with step_in_backward, which drops them one by one");
  TORCH_CHECK(!join_, "gradients cannot be clipped by value within join()");
  const at::NoGradGuard no_grad;
  const comm::ProfilerRange range([] { return "clip values"; });
  for (const at::Tensor& gradient : gradient_memory()) {
    gradient.clamp_(-most, most);
  }
}

bool ShardedStep::awaits_reduction() const {
  return std::any_of(flat_groups_.begin(), flat_groups_.end(),
                     [](const auto& group) { return group->gradients().await_reduction(); });
}

void ShardedStep::wait_for_parameters() {
  for (const auto& group : flat_groups_) {
    group->wait_for_values();
  }
}

void ShardedStep::clear_gradients() {
  for (const auto& group : flat_groups_) {
    group->gradients().clear();
  }
}

std::vector<at::Tensor> ShardedStep::gradient_memory() const {
  std::vector<at::Tensor> result;
  for (const auto& group : flat_groups_) {
    const auto memory = group->gradients().memory();
    result.insert(result.end(), memory.begin(), memory.end());
  }
  return result;
}

int64_t ShardedStep::scaled_by() const {
  for (const auto& group : flat_groups_) {
    if (group->gradients().scaled_by() != 0) {
      return group->gradients().scaled_by();
    }
  }
  return 0;
}

void ShardedStep::set_scaled_by(int64_t scaler) {
  for (const auto& group : flat_groups_) {
    group->gradients().set_scaled_by(scaler);
  }
}

std::vector<std::pair<at::Tensor, at::Tensor>> ShardedStep::gradients_to_compare() const {
  TORCH_CHECK(!join_,
              "gradients of ranks cannot be compared (AdaScale) within join(), where ranks may "
              "have none");
  TORCH_CHECK(!options_.flat().step_in_backward(),
              "gradients of ranks cannot be compared (AdaScale) with step_in_backward, which "
              "drops them one by one");
  TORCH_CHECK(!mesh_.has_replicas(),
              "gradients of ranks cannot be compared (AdaScale) in a mesh with replicas, where "
              "several ranks have each part of them");
  std::vector<std::pair<at::Tensor, at::Tensor>> result;
  for (const auto& group : flat_groups_) {
    TORCH_CHECK(!group->gradients().await_reduction(),
                "gradients cannot be compared (AdaScale) before they are reduced: the last "
                "backward of a step must not be within no_sync()");
    for (const Slice& slice : group->slices()) {
      if (const at::Tensor gradient = group->gradients().of(slice); gradient.defined()) {
        result.emplace_back(group->parameters()[slice.piece.parameter].tensor, gradient);
      }
    }
  }
  return result;
}

void ShardedStep::freeze_layout() {
  for (const auto& group : flat_groups_) {
    group->freeze_layout();
  }
}

// Ranks that have run out of inputs.

void ShardedStep::set_join(std::shared_ptr<Join> join, int number) {
  join_ = std::move(join);
  join_number_ = number;
}

void ShardedStep::announce() {
  if (join_) {
    const auto said =
        join_->announce(Join::Action::kStep, {static_cast<double>(join_number_), 0, 0});
    share_numbers(said.leader);
  }
}

/// A rank that has joined no longer runs its scheduler.
void ShardedStep::share_numbers(int leader) {
  const auto own = callbacks_.numbers();
  const at::Tensor numbers = at::tensor(own, at::kDouble);
  comm::broadcast(mesh_.all(), numbers, leader, "options of the optimizer").wait();
  const auto* const values = numbers.const_data_ptr<double>();
  callbacks_.set_numbers({values, values + own.size()});
}

void ShardedStep::follow(const Join::Announcement& said) {
  if (said.action == Join::Action::kClip) {
    clip(said.details[1], said.details[2]);
  } else {
    run();
  }
}

}  // namespace fairshard::shard

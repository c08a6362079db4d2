#include <fairshard/comm/collectives.h>
#include <fairshard/optim/oss.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

namespace fairshard {

using shard::Join;

OssBase::OssBase(comm::Group group, std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                 const OssOptions& options, shard::Partition partition)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), std::move(defaults)),
      group_(std::move(group)),
      options_(options),
      partition_(options.partition().value_or(partition)) {}

OssBase::~OssBase() {
  for (const auto& part : parts_) {
    part->on_reduced = nullptr;  // a reducer may outlive this
  }
}

void OssBase::take(const std::vector<NamedTensors>& groups) {
  std::vector<shard::Parameter> parameters;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& [name, tensor] : groups[i]) {
      parameters.push_back({name, tensor, static_cast<int64_t>(i)});
    }
  }
  TORCH_CHECK_VALUE(!parameters.empty(), "OSS got no parameters");
  const auto plan = shard::PlanOptions()
                        .partition(partition_)
                        .bucket_bytes(options_.bucket_bytes())
                        .first_bucket_bytes(options_.first_bucket_bytes());
  parts_.push_back(
      std::make_shared<shard::FlatParameters>(group_, parameters,
                                              shard::FlatOptions()
                                                  .plan(plan)
                                                  .master_weights(options_.master_weights())
                                                  .release_values(options_.release_parameters())
                                                  .gather_in_forward(options_.overlap_gather())
                                                  .gather_dtype(options_.gather_dtype())));
  if (options_.step_in_backward()) {
    auto& part = *parts_.back();
    part.on_reduced = [this, &part](size_t bucket) { step_bucket(part, bucket); };
  }
  first_groups_.push_back(groups_);
  groups_ += groups.size();
}

std::vector<std::vector<at::Tensor>> OssBase::slices() const {
  std::vector<std::vector<at::Tensor>> result(groups_);
  for (size_t p = 0; p < parts_.size(); ++p) {
    for (const auto& slice : parts_[p]->slices()) {
      const auto group = parts_[p]->parameters()[slice.piece.parameter].group;
      result[first_groups_[p] + static_cast<size_t>(group)].push_back(slice.values);
    }
  }
  return result;
}

bool OssBase::have_slices_changed() {
  int revision = 0;
  for (const auto& part : parts_) {
    revision += part->revision();
  }
  return std::exchange(seen_revision_, revision) != revision;
}

void OssBase::zero_grad(bool set_to_none) {
  Optimizer::zero_grad(set_to_none);
  for (const auto& part : parts_) {
    part->gradients().clear();
  }
}

at::Tensor OssBase::clip_grad_norm(double max_norm, double norm_type) {
  if (const auto& join = parts_[0]->join) {
    join->announce(Join::Action::kClip, {static_cast<double>(number_), max_norm, norm_type});
  }
  return shard::clip_gradients(parts_, max_norm, norm_type);
}

void OssBase::step_share() {
  announce_step();
  if (options_.step_in_backward()) {
    step_by_bucket();
  } else {
    step_at_once();
  }
  if (!options_.overlap_gather()) {
    wait_for_parameters();
  }
}

void OssBase::step_at_once() {
  for (const auto& part : parts_) {
    part->before_step();
    for (const auto& slice : part->slices()) {
      slice.values.mutable_grad() = part->gradients().of(slice);
    }
  }
  step_base();
  for (const auto& part : parts_) {
    part->settle();
    part->gradients().mark_used();
    for (const auto& slice : part->slices()) {
      slice.values.mutable_grad() = at::Tensor();
    }
    part->start_gather();
  }
}

/// Backward has done it, but for the first time and where there is no reducer.
void OssBase::step_by_bucket() {
  for (const auto& part : parts_) {
    if (!part->take_was_stepped()) {
      part->step_all_buckets();
    }
    part->gradients().mark_used();
  }
}

void OssBase::step_bucket(const shard::FlatParameters& part, size_t bucket) {
  std::vector<at::Tensor> stepped;
  for (const auto& slice : part.slices()) {
    if (slice.piece.bucket == bucket) {
      slice.values.mutable_grad() = part.gradients().of(slice);
      stepped.push_back(slice.values);
    }
  }
  step_base();
  for (const at::Tensor& values : stepped) {
    values.mutable_grad() = at::Tensor();
  }
}

void OssBase::announce_step() {
  if (const auto& join = parts_[0]->join) {
    const auto said = join->announce(Join::Action::kStep, {static_cast<double>(number_), 0, 0});
    share_learning_rates(said.leader);
  }
}

/// A rank that has joined no longer runs its scheduler.
void OssBase::share_learning_rates(int leader) {
  const at::Tensor rates = at::empty({static_cast<int64_t>(param_groups().size())}, at::kDouble);
  auto* const values = rates.mutable_data_ptr<double>();
  for (size_t i = 0; i < param_groups().size(); ++i) {
    values[i] = param_groups()[i].options().get_lr();
  }
  comm::broadcast(group_, rates, leader, "learning rates").wait();
  for (size_t i = 0; i < param_groups().size(); ++i) {
    param_groups()[i].options().set_lr(values[i]);
  }
}

void OssBase::wait_for_parameters() {
  for (const auto& part : parts_) {
    part->wait_for_values();
  }
}

}  // namespace fairshard

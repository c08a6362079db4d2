#include <fairshard/optim/oss.h>

#include <c10/util/Exception.h>

namespace fairshard {

OssBase::OssBase(comm::Group group, std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                 const OssOptions& options)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), std::move(defaults)),
      group_(std::move(group)),
      options_(options) {}

std::vector<std::vector<at::Tensor>> OssBase::take(
    const std::vector<std::vector<std::pair<std::string, at::Tensor>>>& groups) {
  std::vector<shard::Parameter> parameters;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& [name, tensor] : groups[i]) {
      parameters.push_back({name, tensor, static_cast<int64_t>(i)});
    }
  }
  TORCH_CHECK_VALUE(!parameters.empty(), "OSS got no parameters");
  parts_.push_back(std::make_shared<shard::FlatParameters>(
      group_, parameters,
      shard::PlanOptions()
          .bucket_bytes(options_.bucket_bytes())
          .first_bucket_bytes(options_.first_bucket_bytes())));
  std::vector<std::vector<at::Tensor>> slices(groups.size());
  for (const auto& slice : parts_.back()->slices()) {
    slices[parts_.back()->parameters()[slice.piece.parameter].group].push_back(slice.values);
  }
  return slices;
}

void OssBase::zero_grad(bool set_to_none) {
  Optimizer::zero_grad(set_to_none);
  for (const auto& part : parts_) {
    part->clear_gradients();
  }
}

at::Tensor OssBase::clip_grad_norm(double max_norm, double norm_type) {
  return shard::clip_gradients(parts_, max_norm, norm_type);
}

void OssBase::show_gradients() {
  wait_for_parameters();
  for (const auto& part : parts_) {
    for (const auto& slice : part->slices()) {
      slice.values.mutable_grad() = part->gradient_of(slice);
    }
  }
}

void OssBase::hide_gradients() {
  for (const auto& part : parts_) {
    part->mark_used();
    for (const auto& slice : part->slices()) {
      slice.values.mutable_grad() = at::Tensor();
    }
  }
}

void OssBase::gather() {
  for (const auto& part : parts_) {
    part->start_gather();
  }
  if (!options_.overlap_gather()) {
    wait_for_parameters();
  }
}

void OssBase::wait_for_parameters() {
  for (const auto& part : parts_) {
    part->wait_for_values();
  }
}

}  // namespace fairshard

#include <fairshard/optim/oss.h>

#include <c10/util/Exception.h>

#include <utility>

namespace fairshard {
namespace {

shard::StepOptions step_options(const OssOptions& options, shard::Partition partition) {
  const auto gather_dtype = options.gather_dtype().value_or(at::kFloat);
  TORCH_CHECK_VALUE(at::isFloatingType(gather_dtype), "gather_dtype is ", gather_dtype,
                    ", but must be a floating-point type");
  return shard::StepOptions()
      .flat(shard::FlatOptions()
                .layout(shard::LayoutOptions()
                            .partition(options.partition().value_or(partition))
                            .bucket_bytes(options.bucket_bytes())
                            .first_bucket_bytes(options.first_bucket_bytes()))
                .precision({.master_weights = options.master_weights(),
                            .gather_dtype = options.gather_dtype()})
                .step_in_backward(options.step_in_backward())
                .reshard_after_forward(options.release_parameters())
                .reshard_after_step(options.overlap_gather()))
      .overlap_gather(options.overlap_gather())
      .step_in_parts(partition == shard::Partition::kEven);
}

}  // namespace

OssBase::OssBase(comm::Mesh mesh, std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                 const OssOptions& options, shard::Partition partition)
    : Optimizer(std::vector<torch::optim::OptimizerParamGroup>(), std::move(defaults)) {
  const auto numbers = [this] {
    std::vector<double> rates;
    for (const auto& param_group : param_groups()) {
      rates.push_back(param_group.options().get_lr());
    }
    return rates;
  };
  const auto set_numbers = [this](const std::vector<double>& rates) {
    for (size_t i = 0; i < rates.size(); ++i) {
      param_groups()[i].options().set_lr(rates[i]);
    }
  };
  sharded_step_ = std::make_shared<shard::ShardedStep>(
      std::move(mesh), step_options(options, partition),
      shard::StepCallbacks{
          .step_slices = [this](const auto& /*slices*/) { step_base(); },
          .numbers = numbers,
          .set_numbers = set_numbers,
      });
}

void OssBase::take(const std::vector<NamedTensors>& groups) {
  std::vector<shard::Parameter> parameters;
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const auto& [name, tensor] : groups[i]) {
      parameters.push_back({name, tensor, static_cast<int64_t>(i)});
    }
  }
  sharded_step_->add(parameters, groups.size());
}

void OssBase::check_groups(size_t sharded) const {
  TORCH_CHECK(param_groups().size() == sharded, "OSS has sharded ", sharded,
              " parameter group(s), but param_groups() has ", param_groups().size(),
              ": add groups by OSS's own add_param_group(), not through a "
              "torch::optim::Optimizer&");
}

bool OssBase::have_slices_changed() {
  const int version = sharded_step_->layout_version();
  return std::exchange(seen_version_, version) != version;
}

void OssBase::save(torch::serialize::OutputArchive& /*archive*/) const {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "an OSS is not saved by torch::save: its state is partitioned across ranks, and the archive "
      "would have one rank's alone. Use fairshard::Checkpoint, which any number of ranks can load");
}

void OssBase::load(torch::serialize::InputArchive& /*archive*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "an OSS is not loaded by torch::load: its state is partitioned across ranks. Use "
      "fairshard::Checkpoint, which also loads the state that a plain optimizer has saved with it");
}

void OssBase::zero_grad(bool set_to_none) {
  Optimizer::zero_grad(set_to_none);
  if (set_to_none) {
    sharded_step_->clear_gradients();
  }
}

}  // namespace fairshard

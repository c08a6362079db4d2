#include "../optim/optimizer_access.h"
#include <fairshard/nn/slowmo.h>

#include <c10/util/Exception.h>

#include <utility>

namespace fairshard {
namespace {

std::vector<shard::Parameter> named_parameters(const torch::nn::Module& module) {
  std::vector<shard::Parameter> result;
  for (const auto& item : module.named_parameters()) {
    result.push_back({item.key(), item.value()});
  }
  return result;
}

void warn_of(const std::string& text) {
  if (!text.empty()) {
    TORCH_WARN(text);
  }
}

}  // namespace

SlowMoBase::SlowMoBase(const comm::Group& world, const outer::Nodes& nodes,
                       std::shared_ptr<torch::nn::Module> module, const SlowMoOptions& options)
    : wrapped_(std::move(module)),
      loop_(world, nodes, named_parameters(*wrapped_), wrapped_->buffers(), options) {
  warn_of(loop_.advice());
}

DataParallelOptions SlowMoBase::node_options(const SlowMoOptions& options, bool has_oss) {
  return DataParallelOptions()
      .mode(has_oss ? DataParallelMode::kGradients : DataParallelMode::kReplicated)
      .broadcast_buffers(options.broadcast_buffers())
      .sync_models_at_startup(false)
      .bucket_bytes(options.bucket_bytes())
      .reduce_dtype(options.reduce_dtype());
}

bool SlowMoBase::slowmo() const {
  return outer_options().optimizer() != outer::OuterOptimizerKind::kAverage;
}

void SlowMoBase::before_slow_forward() {
  if (loop_.is_behind(wrapped_->parameters().size())) {
    loop_.set_parameters(named_parameters(*wrapped_));
  }
  if (wrapped_->is_training()) {
    warn_of(loop_.count_forward());
  }
}

outer::StepResult SlowMoBase::perform_slowmo(torch::optim::Optimizer& optimizer,
                                             const std::vector<at::Tensor>& masters) {
  auto* const oss = dynamic_cast<OssBase*>(&optimizer);
  TORCH_CHECK_VALUE(
      !oss || loop_.is_sharded(),
      "perform_slowmo: the optimizer is an OSS that was made after SlowMoDistributedDataParallel. "
      "Make it before, over the ranks of a node, and give it to the constructor");
  TORCH_CHECK_VALUE(oss || !loop_.is_sharded(),
                    "perform_slowmo: the parameters belong to an OSS, but the optimizer that was "
                    "given is none");
  outer::InnerOptimizer inner;
  const auto slices = oss ? oss->sharded_step().slices() : std::vector<std::vector<at::Tensor>>();
  for (size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    const auto& group = optimizer.param_groups()[i];
    inner.groups.emplace_back(group.options().get_lr(), oss ? slices.at(i) : group.params());
  }
  auto& stepping = oss ? oss->base() : optimizer;
  inner.zero = [&stepping](const at::Tensor& tensor, const std::vector<std::string>& fields) {
    zero_state(stepping, tensor, fields);
  };
  return loop_.step(inner, masters, wrapped_->buffers());
}

}  // namespace fairshard

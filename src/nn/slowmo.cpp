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

SlowMoBase::SlowMoBase(const comm::Group& world, std::shared_ptr<torch::nn::Module> module,
                       int ranks_per_node, const SlowMoOptions& options)
    : SlowMoBase(world, outer::Nodes(world, ranks_per_node), std::move(module), options) {}

SlowMoBase::SlowMoBase(comm::Group world, const outer::Nodes& nodes,
                       std::shared_ptr<torch::nn::Module> module, const SlowMoOptions& options)
    : DataParallelBase(nodes.intra_node(), module, {},
                       DataParallelOptions()
                           .mode(DataParallelMode::kReplicated)
                           .broadcast_buffers(options.broadcast_buffers())
                           .sync_models_at_startup(false)
                           .bucket_bytes(options.bucket_bytes())
                           .reduce_dtype(options.reduce_dtype())),
      wrapped_(std::move(module)),
      loop_(std::move(world), nodes, named_parameters(*wrapped_), wrapped_->buffers(), options),
      parameters_seen_(wrapped_->parameters().size()) {
  warn_of(loop_.advice());
}

bool SlowMoBase::slowmo() const {
  return outer_options().optimizer() != outer::OuterOptimizerKind::kAverage;
}

void SlowMoBase::before_slow_forward() {
  const size_t count = wrapped_->parameters().size();
  if (count != std::exchange(parameters_seen_, count)) {
    loop_.set_parameters(named_parameters(*wrapped_));
  }
  before_forward();
  if (wrapped_->is_training()) {
    warn_of(loop_.count_forward());
  }
}

outer::StepResult SlowMoBase::perform_slowmo(torch::optim::Optimizer& optimizer,
                                             const std::vector<at::Tensor>& masters) {
  TORCH_CHECK_VALUE(!dynamic_cast<OssBase*>(&optimizer),
                    "perform_slowmo: the optimizer is an OSS. It has parts of the parameters "
                    "stepped by other ranks and gathers them in every step, so nodes would never "
                    "train apart: use its base optimizer by itself");
  outer::InnerOptimizer inner;
  for (const auto& group : optimizer.param_groups()) {
    inner.groups.emplace_back(group.options().get_lr(), group.params());
  }
  inner.zero = [&optimizer](const at::Tensor& tensor, const std::vector<std::string>& fields) {
    zero_state(optimizer, tensor, fields);
  };
  return loop_.step(inner, masters, wrapped_->buffers());
}

}  // namespace fairshard

#include "gradients.h"

#include <fairshard/optim/oss.h>
#include <fairshard/scale/unscale.h>

namespace fairshard::detail {

std::vector<at::Tensor> gradient_memory_of(const torch::optim::Optimizer& optimizer) {
  if (const auto* const oss = dynamic_cast<const OssBase*>(&optimizer)) {
    return oss->sharded_step().gradient_memory();
  }
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return scale::gradient_memory(parameters);
}

}  // namespace fairshard::detail

#include "gradients.h"

#include <fairshard/optim/oss.h>

namespace fairshard::detail {

std::vector<at::Tensor> gradient_memory_of(const torch::optim::Optimizer& optimizer) {
  if (const auto* const oss = dynamic_cast<const OssBase*>(&optimizer)) {
    return oss->sharded_step().gradient_memory();
  }
  std::vector<at::Tensor> gradients;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (parameter.grad().defined()) {
        gradients.push_back(parameter.grad());
      }
    }
  }
  return gradients;
}

}  // namespace fairshard::detail

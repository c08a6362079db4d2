#include "gradients.h"

#include <fairshard/optim/oss.h>

namespace fairshard::detail {

std::vector<at::Tensor> gradient_memory_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  if (const auto* const oss = dynamic_cast<const OssBase*>(&optimizer)) {
    for (const auto& part : oss->parts()) {
      const auto memory = part->gradients().memory();
      gradients.insert(gradients.end(), memory.begin(), memory.end());
    }
    return gradients;
  }
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

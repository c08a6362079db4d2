#pragma once
// Where an optimizer's gradients lie.

#include <torch/optim/optimizer.h>

#include <vector>

namespace fairshard::detail {

/// All memory of this rank that has gradients of the optimizer, which may be an OSS.
std::vector<at::Tensor> gradient_memory_of(const torch::optim::Optimizer& optimizer);

}  // namespace fairshard::detail

#pragma once
// How the core reaches torch's optimizers and our own: what their states and options consist of,
// under the names that these have in Python.

#include <fairshard/parts/parts.h>

#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

namespace fairshard {

/// The optimizer must live as long as this is used.
parts::OptimizerAccess access_to(torch::optim::Optimizer& optimizer);

/// All fields that states of this optimizer may have. Throws if its class is not known.
std::vector<std::string> state_field_names(const torch::optim::Optimizer& optimizer);

/// Zeroes those of the fields that an optimizer's state of a tensor has.
void zero_state(torch::optim::Optimizer& optimizer, const at::Tensor& tensor,
                const std::vector<std::string>& fields);

}  // namespace fairshard

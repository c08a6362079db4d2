#pragma once
// The optimizers that a checkpoint knows: what their states and options consist of, under the names
// that these have in Python.

#include "../store/json.h"

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace fairshard {

/// A part of the state of one parameter: a tensor, or a count of steps.
struct StateField {
  const char* name;
  at::Tensor* tensor = nullptr;
  int64_t* count = nullptr;
  /// Whether it has an element for each of the parameter's.
  bool is_like_parameter = true;
  /// Whether a state without it is of no use.
  bool is_required = true;
};

/// An empty state for an optimizer of this class. Throws if the class is not known.
std::unique_ptr<torch::optim::OptimizerParamState> new_state_for(
    const torch::optim::Optimizer& optimizer);

/// The fields of a state of this optimizer, defined or not.
std::vector<StateField> fields_of(const torch::optim::Optimizer& optimizer,
                                  torch::optim::OptimizerParamState& state);

store::Json options_to_json(const torch::optim::OptimizerOptions& options);
/// Takes up those options that it knows.
void options_from_json(torch::optim::OptimizerOptions& options, const store::Json& json);

}  // namespace fairshard

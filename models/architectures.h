#pragma once
// All architectures that there are, by their model_type.

#include <fairshard/models/model.h>

namespace fairshard::models {

/// A model whose weights are not yet set.
CausalModel make_empty(const ModelConfig& config, at::ScalarType dtype);

}  // namespace fairshard::models

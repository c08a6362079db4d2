#pragma once
// Llama 2, 3, 3.1 and 3.2.

#include "config_json.h"
#include <fairshard/models/model.h>

namespace fairshard::models {

/// Its part of a config.json.
void read_llama(const ConfigJson& json, ModelConfig& config);
/// With weights that are not yet set.
std::shared_ptr<CausalModelImpl> make_llama(const ModelConfig& config, at::ScalarType dtype);

}  // namespace fairshard::models

#pragma once
// GPT-2.

#include "config_json.h"
#include <fairshard/models/model.h>

namespace fairshard::models {

/// Its part of a config.json.
void read_gpt2(const ConfigJson& json, ModelConfig& config);
/// With weights that are not yet set.
std::shared_ptr<CausalModelImpl> make_gpt2(const ModelConfig& config, at::ScalarType dtype);

}  // namespace fairshard::models

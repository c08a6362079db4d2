#pragma once
// Qwen2 and 2.5, whose queries, keys and values have biases, and Qwen3, which normalises queries
// and keys.

#include "config_json.h"
#include <fairshard/models/model.h>

namespace fairshard::models {

/// Their parts of a config.json.
void read_qwen2(const ConfigJson& json, ModelConfig& config);
void read_qwen3(const ConfigJson& json, ModelConfig& config);
/// With weights that are not yet set.
std::shared_ptr<CausalModelImpl> make_qwen2(const ModelConfig& config, at::ScalarType dtype);
std::shared_ptr<CausalModelImpl> make_qwen3(const ModelConfig& config, at::ScalarType dtype);

}  // namespace fairshard::models

#include "qwen.h"

#include "rotary_model.h"

#include <c10/util/Exception.h>

namespace fairshard::models {
namespace {

/// Both can see only the last tokens in some layers, which is not supported.
void check_windows(const ConfigJson& json, const ModelConfig& config) {
  const bool has_windows = json.flag("use_sliding_window", false) && json.has("sliding_window");
  const auto first = json.count("max_window_layers").value_or(28);
  bool is_used = !json.has("layer_types") && has_windows && first < config.num_hidden_layers;
  for (const std::string& type : json.texts("layer_types")) {
    is_used = is_used || type != "full_attention";
  }
  TORCH_CHECK_VALUE(!is_used, json.what(),
                    ": attention to a sliding window is not supported (use_sliding_window, "
                    "layer_types)");
}

void read_qwen(const ConfigJson& json, ModelConfig& config, int64_t default_head_dim) {
  config.max_position_embeddings = json.size("max_position_embeddings", 32768);
  read_rotary(json, config, default_head_dim);
  check_windows(json, config);
}

}  // namespace

void read_qwen2(const ConfigJson& json, ModelConfig& config) {
  config.architecture = "Qwen2ForCausalLM";
  read_qwen(json, config, /*default_head_dim=*/0);
}

void read_qwen3(const ConfigJson& json, ModelConfig& config) {
  config.architecture = "Qwen3ForCausalLM";
  read_qwen(json, config, /*default_head_dim=*/128);
  config.attention_bias = json.flag("attention_bias", false);
}

std::shared_ptr<CausalModelImpl> make_qwen2(const ModelConfig& config, at::ScalarType dtype) {
  return std::make_shared<RotaryModelImpl>(config, AttentionOptions{.has_bias = true}, dtype);
}

std::shared_ptr<CausalModelImpl> make_qwen3(const ModelConfig& config, at::ScalarType dtype) {
  const AttentionOptions options{.has_bias = config.attention_bias,
                                 .has_output_bias = config.attention_bias,
                                 .has_norms = true};
  return std::make_shared<RotaryModelImpl>(config, options, dtype);
}

}  // namespace fairshard::models

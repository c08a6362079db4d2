#include "llama.h"

#include "rotary_model.h"

namespace fairshard::models {

void read_llama(const ConfigJson& json, ModelConfig& config) {
  config.architecture = "LlamaForCausalLM";
  config.max_position_embeddings = json.size("max_position_embeddings", 2048);
  read_rotary(json, config, /*default_head_dim=*/0);
  config.attention_bias = json.flag("attention_bias", false);
  config.mlp_bias = json.flag("mlp_bias", false);
}

std::shared_ptr<CausalModelImpl> make_llama(const ModelConfig& config, at::ScalarType dtype) {
  const AttentionOptions options{.has_bias = config.attention_bias,
                                 .has_output_bias = config.attention_bias};
  return std::make_shared<RotaryModelImpl>(config, options, dtype);
}

}  // namespace fairshard::models

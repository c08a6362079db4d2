#include "rotary_model.h"

#include "rope.h"

#include <ATen/ops/silu.h>
#include <c10/util/Exception.h>

#include <memory>
#include <vector>

namespace fairshard::models {

SwiGluImpl::SwiGluImpl(const ModelConfig& config, at::ScalarType dtype)
    : gate_proj_(config.hidden_size, config.intermediate_size, config.mlp_bias, dtype),
      up_proj_(config.hidden_size, config.intermediate_size, config.mlp_bias, dtype),
      down_proj_(config.intermediate_size, config.hidden_size, config.mlp_bias, dtype) {
  register_module("gate_proj", gate_proj_);
  register_module("up_proj", up_proj_);
  register_module("down_proj", down_proj_);
}

at::Tensor SwiGluImpl::forward(const at::Tensor& hidden) {
  return down_proj_(at::silu(gate_proj_(hidden)) * up_proj_(hidden));
}

RotaryBlock::RotaryBlock(const ModelConfig& config, const AttentionOptions& options,
                         at::ScalarType dtype)
    : self_attn_(config, options, dtype),
      mlp_(config, dtype),
      input_layernorm_(config.hidden_size, config.norm_eps, dtype),
      post_attention_layernorm_(config.hidden_size, config.norm_eps, dtype) {
  register_module("self_attn", self_attn_);
  register_module("mlp", mlp_);
  register_module("input_layernorm", input_layernorm_);
  register_module("post_attention_layernorm", post_attention_layernorm_);
}

at::Tensor RotaryBlock::forward(const at::Tensor& hidden, const Rotation& rotation,
                                KeyValues* seen) {
  const at::Tensor attended = hidden + self_attn_(input_layernorm_(hidden), rotation, seen);
  return attended + mlp_(post_attention_layernorm_(attended));
}

RotaryModelImpl::RotaryModelImpl(const ModelConfig& config, const AttentionOptions& options,
                                 at::ScalarType dtype)
    : CausalModelImpl(config),
      embed_tokens_(config.vocab_size, config.hidden_size, config.pad_token_id, dtype),
      norm_(config.hidden_size, config.norm_eps, dtype),
      frequencies_(rope_frequencies(config.rope, config.head_dim)) {
  std::vector<std::shared_ptr<DecoderBlock>> blocks;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    blocks.push_back(std::make_shared<RotaryBlock>(config, options, dtype));
  }
  Parts parts;
  parts.body = "model";
  parts.embeddings = {{"embed_tokens", embed_tokens_.ptr()}};
  parts.list = "layers";
  parts.blocks = blocks;
  parts.norm = {"norm", norm_.ptr()};
  parts.token_weight = embed_tokens_->weight;
  set_parts(parts);
}

Rotation RotaryModelImpl::rotation(const at::Tensor& hidden, int64_t first) const {
  return rotation_of(config().rope, frequencies_, {first, first + hidden.size(1)},
                     hidden.options());
}

void read_rotary(const ConfigJson& json, ModelConfig& config, int64_t default_head_dim) {
  config.vocab_size = json.size("vocab_size");
  config.hidden_size = json.size("hidden_size");
  config.intermediate_size = json.size("intermediate_size");
  config.num_hidden_layers = json.size("num_hidden_layers");
  config.num_attention_heads = json.size("num_attention_heads");
  config.num_key_value_heads = json.size("num_key_value_heads", config.num_attention_heads);
  TORCH_CHECK_VALUE(config.num_attention_heads % config.num_key_value_heads == 0, json.what(),
                    ": num_attention_heads is ", config.num_attention_heads,
                    ", which is not a multiple of num_key_value_heads, ",
                    config.num_key_value_heads);
  const bool has_head_dim = json.has("head_dim") || default_head_dim > 0;
  TORCH_CHECK_VALUE(has_head_dim || config.hidden_size % config.num_attention_heads == 0,
                    json.what(), ": hidden_size is ", config.hidden_size,
                    ", which is not a multiple of num_attention_heads, ",
                    config.num_attention_heads, ", and there is no 'head_dim'");
  config.head_dim =
      json.size("head_dim",
                has_head_dim ? default_head_dim : config.hidden_size / config.num_attention_heads);
  config.norm_eps = json.number("rms_norm_eps", config.norm_eps);
  config.tie_word_embeddings = json.flag("tie_word_embeddings", false);
  config.attention_dropout = json.dropout("attention_dropout", 0);
  const auto padding = json.count("pad_token_id");
  TORCH_CHECK_VALUE(!padding || *padding < config.vocab_size, json.what(), ": pad_token_id is ",
                    padding.value_or(0), ", but must be below vocab_size, ", config.vocab_size);
  config.pad_token_id = padding.value_or(-1);
  const std::string activation = json.text("hidden_act", "silu");
  TORCH_CHECK_VALUE(activation == "silu" || activation == "swish", json.what(), ": hidden_act '",
                    activation, "' is not supported; silu is");
  config.rope = read_rope(json, config);
}

}  // namespace fairshard::models

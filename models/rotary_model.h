#pragma once
// What Llama, Qwen2.5 and Qwen3 have in common: rotary embeddings, grouped-query attention, RMSNorm
// and SwiGLU. In what they differ is in llama.cpp and qwen.cpp.

#include "attention.h"
#include "config_json.h"
#include <fairshard/models/model.h>

namespace fairshard::models {

/// down(silu(gate(x)) * up(x)).
class SwiGluImpl : public torch::nn::Module {
 public:
  SwiGluImpl(const ModelConfig& config, at::ScalarType dtype);
  at::Tensor forward(const at::Tensor& hidden);

 private:
  Linear gate_proj_;
  Linear up_proj_;
  Linear down_proj_;
};
TORCH_MODULE(SwiGlu);

class RotaryBlock final : public DecoderBlock {
 public:
  RotaryBlock(const ModelConfig& config, const AttentionOptions& options, at::ScalarType dtype);
  at::Tensor forward(const at::Tensor& hidden, const Rotation& rotation, KeyValues* seen) override;

 private:
  Attention self_attn_;
  SwiGlu mlp_;
  RmsNorm input_layernorm_;
  RmsNorm post_attention_layernorm_;
};

class RotaryModelImpl final : public CausalModelImpl {
 public:
  RotaryModelImpl(const ModelConfig& config, const AttentionOptions& options, at::ScalarType dtype);

  Rotation rotation(const at::Tensor& hidden, int64_t first) const override;
  at::Tensor norm(const at::Tensor& hidden) override { return norm_(hidden); }

 private:
  at::Tensor embed_checked(const at::Tensor& tokens, int64_t /*first*/) override {
    return embed_tokens_(tokens);
  }

  Embedding embed_tokens_;
  RmsNorm norm_;
  /// Computed when the model is made, on the CPU, as transformers does.
  at::Tensor frequencies_;
};

/// The keys that these architectures share. A missing "num_key_value_heads" or "head_dim" is taken
/// for what is given.
void read_rotary(const ConfigJson& json, ModelConfig& config, int64_t default_head_dim);

}  // namespace fairshard::models

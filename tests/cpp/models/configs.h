#pragma once
// Small models of each kind, for tests.

#include <fairshard/models/model.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>

#include <string>

namespace fairshard::test {

inline const std::string kGpt2 = R"({"model_type": "gpt2", "vocab_size": 50, "n_positions": 16,
  "n_embd": 16, "n_layer": 3, "n_head": 2, "embd_pdrop": 0, "attn_pdrop": 0, "resid_pdrop": 0})";
inline const std::string kLlama = R"({"model_type": "llama", "vocab_size": 50, "hidden_size": 16,
  "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "tie_word_embeddings": true})";
inline const std::string kQwen3 = R"({"model_type": "qwen3", "vocab_size": 50, "hidden_size": 16,
  "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4,
  "num_key_value_heads": 2, "head_dim": 8})";

/// The same weights for every rank and every call: ranks as threads share torch's own generator.
inline models::CausalModel make_causal(const std::string& json) {
  auto model = models::make_model(models::ModelConfig::parse(json));
  auto generator = at::detail::createCPUGenerator(3);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : model->parameters()) {
    parameter.uniform_(-0.3, 0.3, generator);
  }
  return model;
}

inline at::Tensor make_tokens(uint64_t seed, int64_t batch = 2, int64_t length = 12) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(50, {batch, length}, generator, at::kLong);
}

}  // namespace fairshard::test

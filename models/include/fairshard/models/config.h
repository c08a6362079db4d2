#pragma once
// models/ has language models of Hugging Face's hub as torch::nn modules, from and to their
// folders. This header: what a model's config.json says.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

namespace fairshard::models {

/// Which frequencies rotary embeddings have. Names and meanings are those of config.json.
struct RopeConfig {
  /// "default", "linear", "llama3" or "yarn".
  std::string type = "default";
  /// The base.
  double theta = 10000;
  /// Of all types but "default": how many times longer texts may be.
  double factor = 1;
  /// Of "llama3" and "yarn": how long they were before.
  int64_t original_max_position_embeddings = 0;
  /// Of "llama3".
  double low_freq_factor = 1;
  double high_freq_factor = 4;  ///< The same.
  /// Of "yarn".
  double beta_fast = 32;
  double beta_slow = 1;         ///< The same.
  bool truncate = true;         ///< The same.
  double attention_factor = 1;  ///< The same: what sines and cosines are multiplied by.

  /// By value.
  bool operator==(const RopeConfig&) const = default;
};

/// What a model is. Names are those that Llama's config.json has; those of GPT-2 mean the same.
struct ModelConfig {
  /// Reads config.json in a folder, as transformers writes it and its hub has it. Throws
  /// c10::ValueError that names the file and what is missing or not supported. Local.
  static ModelConfig read(const std::string& folder);
  /// The same from the text of a config.json, for instance of a program's own; what it leaves out
  /// is as transformers has it. `what` names the text in messages.
  static ModelConfig parse(const std::string& json, const std::string& what = "config.json");

  /// "gpt2", "llama", "qwen2" or "qwen3".
  std::string model_type;
  /// The class in transformers, "LlamaForCausalLM" for instance.
  std::string architecture;
  /// That of the saved weights, if it is known.
  std::optional<at::ScalarType> dtype;

  int64_t vocab_size = 0;               ///< Different tokens.
  int64_t hidden_size = 0;              ///< Features per token.
  int64_t intermediate_size = 0;        ///< Those within a block's perceptron.
  int64_t num_hidden_layers = 0;        ///< Blocks.
  int64_t num_attention_heads = 0;      ///< Heads of queries.
  int64_t num_key_value_heads = 0;      ///< Heads of keys and values; a divisor of these.
  int64_t head_dim = 0;                 ///< Features per head.
  int64_t max_position_embeddings = 0;  ///< GPT-2 cannot have longer texts, in tokens.
  double norm_eps = 1e-6;               ///< What norms add to a variance.
  double initializer_range = 0.02;      ///< The deviation of random weights.
  bool tie_word_embeddings = false;     ///< Whether the head is the token embedding.
  bool attention_bias = false;          ///< Of Llama and Qwen3: in all layers of attention.
  bool mlp_bias = false;                ///< Of Llama: in all layers of a perceptron.
  double attention_dropout = 0;         ///< While training.
  /// A token whose embedding gets no gradient, or -1. Not of GPT-2.
  int64_t pad_token_id = -1;
  /// Not of GPT-2.
  RopeConfig rope;

  // Of GPT-2 alone.
  std::string activation_function;               ///< "gelu_new" or "gelu".
  double embd_pdrop = 0;                         ///< Dropout of embeddings.
  double resid_pdrop = 0;                        ///< Dropout of what a block adds.
  bool scale_attn_weights = true;                ///< Divides by the root of head_dim.
  bool scale_attn_by_inverse_layer_idx = false;  ///< Divides by the number of the block, too.

  /// All of config.json, for whoever writes it again.
  std::string json;

  /// By value.
  bool operator==(const ModelConfig&) const = default;
};

}  // namespace fairshard::models

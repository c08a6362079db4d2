// What a config.json may say, and what is refused; that it means the same as in transformers is
// shown by tests/python/models.
#include "models/configs.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include <fairshard/models/folder.h>

#include <gtest/gtest.h>

#include <fstream>

namespace fairshard::models {
namespace config_test {

using test::expect_error;
using test::kGpt2;
using test::kLlama;
using test::kQwen3;

/// A config with another value, or with one more.
std::string with(const std::string& json, const std::string& key, const std::string& value) {
  const std::string quoted = "\"" + key + "\":";
  const auto found = json.find(quoted);
  if (found == std::string::npos) {
    return "{" + quoted + " " + value + ", " + json.substr(1);
  }
  const auto end = json.find_first_of(",}", found);
  return json.substr(0, found) + quoted + " " + value + json.substr(end);
}

void expect_refused(const std::string& json, const std::vector<std::string>& words) {
  expect_error([&] { ModelConfig::parse(json, "a/config.json"); }, words);
}

TEST(ModelConfig, WhatIsLeftOutIsAsInTransformers) {
  const auto llama = ModelConfig::parse(kLlama);
  EXPECT_EQ(llama.architecture, "LlamaForCausalLM");
  EXPECT_EQ(llama.head_dim, 4);
  EXPECT_EQ(llama.rope, RopeConfig());
  EXPECT_EQ(llama.norm_eps, 1e-6);
  EXPECT_EQ(ModelConfig::parse(with(kLlama, "num_key_value_heads", "null")).num_key_value_heads, 4);
  const auto gpt2 = ModelConfig::parse(R"({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8,
    "n_layer": 1, "n_head": 2, "torch_dtype": "bfloat16"})");
  EXPECT_EQ(gpt2.intermediate_size, 32);
  EXPECT_EQ(gpt2.embd_pdrop, 0.1);
  EXPECT_TRUE(gpt2.tie_word_embeddings);
  EXPECT_EQ(gpt2.dtype, at::kBFloat16);
  EXPECT_EQ(ModelConfig::parse(with(kQwen3, "head_dim", "null")).head_dim, 128);
}

TEST(ModelConfig, WhatIsMissingOrWrongIsNamed) {
  expect_refused("{", {"a/config.json: not JSON"});
  expect_refused("[]", {"a/config.json: an object is expected, but it is array"});
  expect_refused("{}", {"a/config.json: there is no 'model_type'"});
  expect_refused(R"({"model_type": "bert"})",
                 {"'bert' is not supported", "gpt2, llama, qwen2, qwen3"});
  expect_refused(R"({"model_type": "llama"})", {"there is no 'vocab_size'"});
  expect_refused(with(kLlama, "hidden_size", "\"16\""),
                 {"'hidden_size' is \"16\"", "whole number"});
  expect_refused(with(kLlama, "hidden_size", "0"), {"'hidden_size' is 0"});
  expect_refused(with(kLlama, "hidden_size", "-4"), {"'hidden_size' is -4"});
  expect_refused(with(kLlama, "hidden_size", "18"),
                 {"hidden_size is 18", "num_attention_heads, 4"});
  expect_refused(with(kLlama, "num_key_value_heads", "3"), {"num_key_value_heads, 3"});
  expect_refused(with(kLlama, "head_dim", "5"), {"head_dim is 5", "even"});
  expect_refused(with(kLlama, "pad_token_id", "50"),
                 {"pad_token_id is 50", "below vocab_size, 50"});
  expect_refused(with(kLlama, "tie_word_embeddings", "1"), {"'tie_word_embeddings' is 1", "true"});
  expect_refused(with(kLlama, "dtype", "\"int8\""), {"'int8' is not supported", "bfloat16"});
  expect_refused(with(kLlama, "rms_norm_eps", "\"x\""), {"'rms_norm_eps' is \"x\"", "a number"});
  expect_refused(with(kGpt2, "n_head", "3"), {"n_embd is 16", "n_head, 3"});
  expect_refused(with(kGpt2, "attn_pdrop", "1"), {"'attn_pdrop' is 1"});
}

TEST(ModelConfig, WhatIsNotSupportedIsRefusedByName) {
  expect_refused(with(kLlama, "hidden_act", "\"gelu\""), {"hidden_act 'gelu'"});
  expect_refused(with(kLlama, "quantization_config", "{}"), {"quantization_config"});
  expect_refused(with(kGpt2, "activation_function", "\"relu\""), {"'relu'", "gelu_new"});
  expect_refused(with(kGpt2, "add_cross_attention", "true"), {"add_cross_attention"});
  const auto with_windows = with(with(kQwen3, "use_sliding_window", "true"), "sliding_window", "8");
  EXPECT_NO_THROW(ModelConfig::parse(with_windows));  // from block 28 on, and there are three
  expect_refused(with(with_windows, "max_window_layers", "2"), {"sliding window"});
  expect_refused(with(kQwen3, "layer_types", R"(["full_attention", "sliding_attention"])"),
                 {"sliding window", "layer_types"});
}

TEST(ModelConfig, RotaryEmbeddings) {
  const auto scaled = [](const std::string& scaling) {
    return with(kLlama, "rope_scaling", scaling);
  };
  expect_refused(
      scaled(R"({"type": "dynamic", "factor": 2})"),
      {"a/config.json: 'rope_scaling': the type 'dynamic'", "default, linear, llama3, yarn"});
  expect_refused(scaled(R"({"rope_type": "linear"})"), {"'rope_scaling': there is no 'factor'"});
  expect_refused(scaled(R"({"rope_type": "linear", "factor": 0})"), {"'factor' is 0"});
  expect_refused(
      scaled(
          R"({"rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 4})"),
      {"'high_freq_factor' is 4"});
  expect_refused(scaled(R"({"rope_type": "default", "partial_rotary_factor": 0.5})"),
                 {"partial_rotary_factor"});
  expect_refused(with(kLlama, "rope_theta", "1"), {"rope_theta, is 1"});
  const auto yarn = ModelConfig::parse(scaled(R"({"type": "yarn", "factor": 4})")).rope;
  EXPECT_EQ(yarn.original_max_position_embeddings, 2048);
  EXPECT_NEAR(yarn.attention_factor, 1.138629, 1e-6);  // 0.1 ln 4 + 1
}

TEST(ModelConfig, OneThatWasChangedIsRefused) {
  auto config = ModelConfig::parse(kLlama);
  config.hidden_size = 32;
  expect_error([&] { make_model(config); }, {"config was changed", "change its JSON"});
}

TEST(ModelFolder, WhatDoesNotFitIsNamed) {
  const test::TemporaryDirectory folder;
  expect_error([&] { load_model(folder.path()); }, {folder.path(), "has no config.json"});
  const std::string first = folder.path() + "/a/first", config = first + "/config.json";
  save_model(test::make_causal(kLlama), first);
  expect_error([&] { save_model(test::make_causal(kLlama), first); }, {config, "exists"});
  const auto load_as = [&](const std::string& json) {
    std::ofstream(config) << json;
    load_model(first);
  };
  expect_error([&] { load_as(with(kLlama, "num_hidden_layers", "4")); },
               {first, "LlamaForCausalLM lack 9 tensor(s), 'model.layers.3."});
  expect_error([&] { load_as(with(kLlama, "num_hidden_layers", "2")); },
               {first, "have 9 tensor(s)", "'model.layers.2."});
  expect_error([&] { load_as(with(kLlama, "tie_word_embeddings", "false")); },
               {first, "lack 1 tensor(s), 'lm_head.weight'"});
  expect_error([&] { load_as(with(kLlama, "vocab_size", "51")); },
               {first, "'model.embed_tokens.weight' has sizes [50, 16], but [51, 16] is wanted"});
}

TEST(ModelFolder, WeightsComeInTheDtypeThatIsAskedFor) {
  const test::TemporaryDirectory folder;
  CausalModel model = test::make_causal(kGpt2);
  model->to(at::kBFloat16);
  save_model(model, folder.path());
  EXPECT_EQ(ModelConfig::read(folder.path()).dtype, at::kBFloat16);
  const auto as_saved = load_model(folder.path());
  const auto wide = load_model(folder.path(), LoadOptions().dtype(at::kFloat));
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    EXPECT_TRUE(as_saved->parameters()[i].equal(model->parameters()[i]));
    EXPECT_TRUE(wide->parameters()[i].equal(model->parameters()[i].to(at::kFloat)));
  }
  expect_error([&] { load_model(folder.path(), LoadOptions().dtype(at::kLong)); },
               {"dtype is Long"});
}

}  // namespace config_test
}  // namespace fairshard::models

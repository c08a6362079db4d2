// fairshard create: the folder of a model with random weights, so that a first run needs no
// network.
#include "commands.h"
#include "gpt/sizes.h"
#include "validators.h"
#include <fairshard/models/folder.h>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>
#include <torch/utils.h>

#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace fairshard::cli {
namespace {

struct CreateOptions {
  std::string folder;
  std::string type = "llama";
  std::string size = "nano";
  int64_t vocabulary = 256;
  /// 0: those of the size.
  int64_t layers = 0, width = 0, heads = 0, context = 0;
  /// 0: as many as heads.
  int64_t key_value_heads = 0;
  bool ties_embeddings = false;
  uint64_t seed = 0;
};

/// About as many parameters as a perceptron of four times the width without a gate has, in whole
/// lines of a cache.
int64_t gated_width(int64_t width) {
  constexpr int64_t kMultiple = 16;
  return (8 * width / 3 + kMultiple - 1) / kMultiple * kMultiple;
}

/// With transformers' names. No token has a meaning of its own as long as there is no tokenizer.
nlohmann::json config_of(const CreateOptions& options) {
  const auto& size = gpt::size_named(options.size);
  const auto chosen = [](int64_t given, int64_t own) { return given > 0 ? given : own; };
  const int64_t layers = chosen(options.layers, size.layers());
  const int64_t width = chosen(options.width, size.width());
  const int64_t heads = chosen(options.heads, size.heads());
  const int64_t context = chosen(options.context, size.context());
  TORCH_CHECK_VALUE(width % heads == 0, "--width ", width, " is not a multiple of --heads ", heads);
  nlohmann::json config = {{"model_type", options.type},
                           {"vocab_size", options.vocabulary},
                           {"tie_word_embeddings", options.ties_embeddings},
                           {"bos_token_id", nullptr},
                           {"eos_token_id", nullptr}};
  if (options.type == "gpt2") {
    config.update({{"n_embd", width},
                   {"n_layer", layers},
                   {"n_head", heads},
                   {"n_positions", context},
                   {"attn_pdrop", 0.0},
                   {"embd_pdrop", 0.0},
                   {"resid_pdrop", 0.0}});
  } else {
    config.update({{"hidden_size", width},
                   {"intermediate_size", gated_width(width)},
                   {"num_hidden_layers", layers},
                   {"num_attention_heads", heads},
                   {"num_key_value_heads", chosen(options.key_value_heads, heads)},
                   {"head_dim", width / heads},
                   {"max_position_embeddings", context}});
  }
  return config;
}

void create(const CreateOptions& options) {
  const auto config = models::ModelConfig::parse(config_of(options).dump(), "fairshard create");
  torch::manual_seed(options.seed);
  const models::CausalModel model = models::make_model(config);
  models::save_model(model, options.folder);
  int64_t parameters = 0;
  for (const auto& parameter : model->parameters()) {
    parameters += parameter.numel();
  }
  std::cout << options.folder << ": " << config.architecture << " of " << parameters
            << " parameters, random\n";
}

void add_sizes(CLI::App& command, CreateOptions& options) {
  std::vector<std::string> names;
  for (const auto& size : gpt::named_sizes()) {
    names.push_back(size.name);
  }
  command.add_option("--size", options.size, "layers, width, heads and positions by a name")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  command.add_option("--layers", options.layers, "instead of the size's")->check(whole_number(1));
  command.add_option("--width", options.width, "instead of the size's, a multiple of --heads")
      ->check(whole_number(1));
  command.add_option("--heads", options.heads, "instead of the size's")->check(whole_number(1));
  command.add_option("--kv-heads", options.key_value_heads, "of keys and values; not of gpt2")
      ->check(whole_number(1));
  command.add_option("--context", options.context, "positions, instead of the size's")
      ->check(whole_number(1));
}

}  // namespace

void add_create(CLI::App& app) {
  const auto options = std::make_shared<CreateOptions>();
  auto* const command = app.add_subcommand(
      "create", "Makes the folder of a model with random weights, as transformers has it.");
  command->add_option("DIR", options->folder, "the folder to write")->required();
  command->add_option("--type", options->type, "its architecture")
      ->check(CLI::IsMember({"gpt2", "llama", "qwen2", "qwen3"}))
      ->capture_default_str();
  add_sizes(*command, *options);
  command
      ->add_option("--vocabulary", options->vocabulary,
                   "different tokens; 256 are those of a model of bytes")
      ->check(whole_number(1))
      ->capture_default_str();
  command->add_flag("--tied", options->ties_embeddings,
                    "the head is the token embedding, which is one matrix less");
  command->add_option("--seed", options->seed, "of the weights")
      ->check(whole_number(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  command->callback([options] { create(*options); });
}

}  // namespace fairshard::cli

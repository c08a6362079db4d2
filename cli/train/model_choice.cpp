#include "model_choice.h"

#include "../usual_context.h"
#include "gpt/sizes.h"

#include <c10/util/Exception.h>

#include <filesystem>

namespace fairshard::cli::training {
namespace {

void choose_size(TrainOptions& options, const IsGiven& is_given) {
  const auto& size = gpt::size_named(options.size);
  const auto fill = [&](const char* name, int64_t& value, int64_t of_size) {
    value = is_given(name) ? value : of_size;
  };
  fill("--layers", options.gpt.layers(), size.layers());
  fill("--width", options.gpt.width(), size.width());
  fill("--heads", options.gpt.heads(), size.heads());
  fill("--context", options.gpt.context(), size.context());
}

bool has_weights(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / "model.safetensors") ||
         std::filesystem::exists(folder / "model.safetensors.index.json");
}

HubFolder open_folder(const std::string& folder) {
  HubFolder hub{folder, models::ModelConfig::read(folder), has_weights(folder)};
  for (const char* const old : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    TORCH_CHECK_VALUE(hub.has_weights || !std::filesystem::exists(folder + "/" + old),
                      "the model folder ", folder, " has its weights in ", old,
                      ", and only safetensors files are read: transformers' save_pretrained() "
                      "writes these");
  }
  return hub;
}

std::optional<Refusal> choose_folder(TrainOptions& options, const IsGiven& is_given) {
  for (const char* const name : {"--size", "--layers", "--width", "--heads"}) {
    if (is_given(name)) {
      return Refusal{name, "does not go with --model, whose config.json says what the model is"};
    }
  }
  options.hub = open_folder(options.model);
  const auto& config = options.hub->config;
  int64_t& context = options.gpt.context();
  if (!is_given("--context")) {
    context = usual_context(config);
  }
  if (context < 2) {
    return Refusal{"--context", "a model predicts tokens from those before them: at least 2"};
  }
  if (config.model_type == "gpt2" && context > config.max_position_embeddings) {
    return Refusal{"--context",
                   c10::str(context, " is more than the ", config.max_position_embeddings,
                            " positions that the model ", options.model, " knows")};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> choose_model(TrainOptions& options, const IsGiven& is_given) {
  if (!options.model.empty()) {
    return choose_folder(options, is_given);
  }
  choose_size(options, is_given);
  return std::nullopt;
}

}  // namespace fairshard::cli::training

#include "saved_hub_model.h"

#include "saved_model.h"
#include <fairshard/models/folder.h>
#include <fairshard/store/reader.h>
#include <fairshard/store/state.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <memory>
#include <vector>

namespace fairshard::cli {
namespace {

namespace fs = std::filesystem;

/// What a model's folder has beside the model, and what a tokenizer needs.
constexpr std::array kCompanions = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "tokenizer.model",
                                    "chat_template.jinja",
                                    "chat_template.json",
                                    "generation_config.json"};

/// A checkpoint, and under which name it has what belongs to the model.
struct OpenCheckpoint {
  explicit OpenCheckpoint(const std::string& folder) : reader(folder) {
    const std::string node = store::node_prefix(0);
    prefix = reader.value(node + kHubConfig) ? node : "";
  }

  bool has_model() const { return reader.value(prefix + kHubConfig).has_value(); }

  std::string text(const char* key) const {
    const auto json = nlohmann::json::parse(reader.value(prefix + key).value_or(""), nullptr,
                                            /*allow_exceptions=*/false);
    TORCH_CHECK_VALUE(json.is_string(), reader.directory(), " has no '", key,
                      "': is it a checkpoint of `fairshard train --model`?");
    return json.get<std::string>();
  }

  models::ModelConfig config() const {
    return models::ModelConfig::parse(text(kHubConfig), reader.directory());
  }

  store::Reader reader;
  std::string prefix;
};

}  // namespace

bool has_hub_model(const std::string& checkpoint) { return OpenCheckpoint(checkpoint).has_model(); }

models::CausalModel load_hub_model(const std::string& checkpoint) {
  OpenCheckpoint open(checkpoint);
  models::CausalModel model = models::make_model(open.config());
  const at::NoGradGuard no_grad;
  for (const auto& item : model->named_parameters()) {
    const at::Tensor values = open.reader.read(c10::str(open.prefix, "model/", item.key()));
    TORCH_CHECK_VALUE(values.sizes() == item.value().sizes(), checkpoint, ": ", item.key(), " is ",
                      values.sizes(), ", but must be ", item.value().sizes());
    item.value().copy_(values);
  }
  return model;
}

void export_hub_model(const std::string& checkpoint, const std::string& folder,
                      at::ScalarType dtype) {
  const auto open = std::make_shared<OpenCheckpoint>(checkpoint);
  const models::ModelConfig config = open->config();
  std::vector<store::TensorToWrite> weights;
  for (const std::string& name : open->reader.names_under(open->prefix + "model/")) {
    const std::string key = c10::str(open->prefix, "model/", name);
    weights.push_back({name, dtype, open->reader.manifest().tensors.at(key).layout.sizes,
                       [open, key, dtype] { return open->reader.read(key).to(dtype); }});
  }
  models::save_model(config, weights, folder);
  for (const char* const name : kCompanions) {
    const fs::path source = fs::path(open->text(kHubFolder)) / name;
    std::error_code error;
    if (fs::is_regular_file(source, error)) {
      fs::copy_file(source, fs::path(folder) / name, fs::copy_options::skip_existing);
    }
  }
}

}  // namespace fairshard::cli

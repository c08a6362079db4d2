#include "config_json.h"
#include <fairshard/checkpoint/safetensors.h>
#include <fairshard/models/folder.h>
#include <fairshard/store/model_files.h>
#include <fairshard/store/pending_file.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <system_error>
#include <vector>

namespace fairshard::models {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// "model.layers.0..." is "layers.0..." in files of the model without its head, and in the first
/// ones of GPT-2.
std::function<std::string(const std::string&)> names_in(const store::ModelFiles& files,
                                                        const CausalModel& model) {
  const std::string prefix = model->named_children().front().key() + ".";
  const auto names = files.names();
  const bool has_prefix = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with(prefix);
  });
  return [prefix, has_prefix](const std::string& name) {
    return has_prefix || !name.starts_with(prefix) ? name : name.substr(prefix.size());
  };
}

/// Masks and frequencies, which old files have and no version reads; a head that is tied.
bool is_superfluous(const std::string& name, const ModelConfig& config) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq") ||
         (config.tie_word_embeddings && name == "lm_head.weight");
}

void check_complete(const store::LoadReport& report, const ModelConfig& config,
                    const std::string& folder) {
  std::vector<std::string> unexpected = report.unexpected;
  std::erase_if(unexpected, [&](const std::string& name) { return is_superfluous(name, config); });
  TORCH_CHECK_VALUE(report.missing.empty(), folder, ": the weights of ", config.architecture,
                    " lack ", report.missing.size(), " tensor(s), '", report.missing.front(),
                    "' among them");
  TORCH_CHECK_VALUE(unexpected.empty(), folder, ": the weights have ", unexpected.size(),
                    " tensor(s) that ", config.architecture, " does not have, '",
                    unexpected.front(), "' among them");
}

std::string config_to_save(const ModelConfig& config, at::ScalarType dtype) {
  OrderedJson json = OrderedJson::parse(config.json);
  json["architectures"] = OrderedJson::array({config.architecture});
  json.erase("torch_dtype");  // the older name
  json["dtype"] = name_of_dtype(dtype);
  return json.dump(2) + "\n";
}

}  // namespace

CausalModel load_model(const std::string& folder, const LoadOptions& options) {
  const ModelConfig config = ModelConfig::read(folder);
  CausalModel model =
      make_unset_model(config, options.dtype().value_or(config.dtype.value_or(at::kFloat)));
  const auto names = names_in(store::ModelFiles(folder), model);
  const auto report =
      load_safetensors(model, folder, SafetensorsOptions().name_in_file(names).strict(false));
  check_complete(report, config, folder);
  return model;
}

void save_model(const CausalModel& model, const std::string& folder, const SaveOptions& options) {
  std::vector<store::TensorToWrite> weights;
  for (const auto& item : model->named_parameters()) {
    const at::Tensor tensor = item.value().detach();
    weights.push_back({item.key(), tensor.scalar_type(), tensor.sizes().vec(),
                       [tensor] { return tensor.contiguous(); }});
  }
  save_model(model->config(), weights, folder, options);
}

void save_model(const ModelConfig& config, const std::vector<store::TensorToWrite>& weights,
                const std::string& folder, const SaveOptions& options) {
  TORCH_CHECK_VALUE(!weights.empty(), "there are no weights to write to ", folder);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  TORCH_CHECK_VALUE(!error, "the folder ", folder, " cannot be made: ", error.message());
  const std::string path = folder + "/config.json";
  store::PendingFile pending(path, store::PendingFile::Existing::kKeep);
  std::ofstream file(pending.temporary_path());
  file << config_to_save(config, weights.front().dtype);
  file.close();
  TORCH_CHECK(file, "cannot write ", path);
  store::write_model_files(folder + "/model.safetensors", weights, options.max_file_bytes());
  pending.publish();
}

}  // namespace fairshard::models

#include "model_shape.h"

#include "../folders.h"
#include "../usual_context.h"
#include <fairshard/models/model.h>
#include <fairshard/store/reader.h>
#include <fairshard/store/safetensors.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <sys/stat.h>

#include <numeric>
#include <string_view>
#include <unordered_map>

namespace fairshard::cli::planning {
namespace {

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

/// Nothing is known of what runs after what, so every tensor is a block.
ModelShape made_of(std::string name, std::vector<ParameterShape> parameters) {
  ModelShape shape;
  shape.name = std::move(name);
  shape.parameters = std::move(parameters);
  for (size_t i = 0; i < shape.parameters.size(); ++i) {
    shape.blocks.push_back({i});
  }
  return shape;
}

std::vector<ParameterShape> parameters_of_checkpoint(const std::string& folder) {
  constexpr std::string_view kModel = "model/";
  const store::Reader reader(find_checkpoint(folder));
  std::vector<ParameterShape> parameters;
  for (const auto& [key, entry] : reader.manifest().tensors) {
    if (key.starts_with(kModel) && c10::isFloatingType(entry.layout.dtype)) {
      parameters.push_back({key.substr(kModel.size()), entry.layout.numel()});
    }
  }
  return parameters;
}

std::vector<ParameterShape> parameters_of_file(const std::string& path) {
  const store::SafetensorsFile file(path);
  std::vector<ParameterShape> parameters;
  for (const auto& tensor : file.header().tensors) {
    if (c10::isFloatingType(tensor.dtype)) {
      parameters.push_back({tensor.name, product(tensor.sizes)});
    }
  }
  return parameters;
}

}  // namespace

int64_t ModelShape::parameter_count() const {
  int64_t count = 0;
  for (const auto& parameter : parameters) {
    count += parameter.numel;
  }
  return count;
}

ModelShape shape_of_gpt(const std::string& name, const gpt::GptOptions& options) {
  const int64_t width = options.width();
  ModelShape shape;
  shape.name = name;
  shape.gpt = options;
  const auto add = [&](const std::string& parameter, int64_t numel) {
    shape.parameters.push_back({parameter, numel});
    shape.blocks.back().push_back(shape.parameters.size() - 1);
  };
  const auto add_pair = [&](const std::string& module, int64_t weight, int64_t bias) {
    add(module + ".weight", weight);
    add(module + ".bias", bias);
  };
  shape.blocks.emplace_back();
  add("token_embedding.weight", options.vocabulary() * width);
  add("position_embedding.weight", options.context() * width);
  for (int64_t layer = 0; layer < options.layers(); ++layer) {
    const std::string block = "block" + std::to_string(layer) + ".";
    shape.blocks.emplace_back();
    add_pair(block + "attention_norm", width, width);
    add_pair(block + "qkv", 3 * width * width, 3 * width);
    add_pair(block + "projection", width * width, width);
    add_pair(block + "mlp_norm", width, width);
    add_pair(block + "expansion", 4 * width * width, 4 * width);
    add_pair(block + "contraction", 4 * width * width, width);
  }
  shape.blocks.emplace_back();
  add_pair("final_norm", width, width);
  shape.blocks.back().push_back(kTokenEmbedding);  // the read-out's weight
  return shape;
}

ModelShape shape_of_hub(const std::string& folder, int64_t context) {
  const auto config = models::ModelConfig::read(folder);
  const models::CausalModel model = models::make_unset_model(config, at::kHalf);
  ModelShape shape;
  shape.name = folder;
  shape.hub = {folder, config, context > 0 ? context : usual_context(config)};
  std::unordered_map<const c10::TensorImpl*, size_t> numbers;
  for (const auto& item : model->named_parameters()) {
    numbers[item.value().unsafeGetTensorImpl()] = shape.parameters.size();
    shape.parameters.push_back({item.key(), item.value().numel()});
  }
  const auto add_block = [&](const auto& modules) {
    shape.blocks.emplace_back();
    for (const auto& module : modules) {
      for (const auto& parameter : module->parameters()) {
        shape.blocks.back().push_back(numbers.at(parameter.unsafeGetTensorImpl()));
      }
    }
  };
  add_block(model->embedding_modules());
  for (const auto& block : model->blocks()) {
    add_block(std::vector{block});
  }
  add_block(model->read_out_modules());
  return shape;
}

ModelShape shape_of_path(const std::string& path) {
  struct stat status {};
  TORCH_CHECK_VALUE(stat(path.c_str(), &status) == 0, path, ": there is no such file or folder");
  auto parameters =
      S_ISDIR(status.st_mode) ? parameters_of_checkpoint(path) : parameters_of_file(path);
  TORCH_CHECK_VALUE(!parameters.empty(), path, ": there are no floating point tensors in it",
                    S_ISDIR(status.st_mode) ? " under the name 'model'" : "");
  return made_of(path, std::move(parameters));
}

ModelShape shape_of_count(int64_t count) {
  constexpr int64_t kTensors = 100;
  std::vector<ParameterShape> parameters;
  for (int64_t i = 0; i < kTensors; ++i) {
    const int64_t numel = (i + 1) * count / kTensors - i * count / kTensors;
    if (numel > 0) {
      parameters.push_back({"parameter" + std::to_string(i), numel});
    }
  }
  return made_of(std::to_string(count) + " parameters", std::move(parameters));
}

}  // namespace fairshard::cli::planning

#include "config_json.h"
#include "gpt2.h"
#include "llama.h"
#include "qwen.h"
#include <fairshard/models/model.h>

#include <c10/util/Exception.h>

#include <array>
#include <fstream>
#include <sstream>

namespace fairshard::models {
namespace {

struct Architecture {
  const char* model_type;
  void (*read)(const ConfigJson& json, ModelConfig& config);
  std::shared_ptr<CausalModelImpl> (*make)(const ModelConfig& config, at::ScalarType dtype);
};

constexpr std::array<Architecture, 4> kArchitectures = {{{"gpt2", read_gpt2, make_gpt2},
                                                         {"llama", read_llama, make_llama},
                                                         {"qwen2", read_qwen2, make_qwen2},
                                                         {"qwen3", read_qwen3, make_qwen3}}};

const Architecture& architecture_of(const std::string& model_type, const std::string& what) {
  std::string known;
  for (const Architecture& architecture : kArchitectures) {
    if (model_type == architecture.model_type) {
      return architecture;
    }
    known += (known.empty() ? "" : ", ") + std::string(architecture.model_type);
  }
  TORCH_CHECK_VALUE(false, what, ": the model_type '", model_type,
                    "' is not supported; those that are: ", known);
}

}  // namespace

ModelConfig ModelConfig::parse(const std::string& json, const std::string& what) {
  const ConfigJson object(json, what);
  ModelConfig config;
  config.json = json;
  config.model_type = object.text("model_type");
  TORCH_CHECK_VALUE(!object.has("quantization_config"), what,
                    ": quantized weights ('quantization_config') are not supported");
  const char* const dtype = object.has("dtype") ? "dtype" : "torch_dtype";
  if (object.has(dtype)) {
    config.dtype = dtype_named(object.text(dtype), what);
  }
  config.initializer_range = object.number("initializer_range", config.initializer_range);
  TORCH_CHECK_VALUE(config.initializer_range >= 0, what, ": 'initializer_range' is ",
                    config.initializer_range, ", but must not be negative");
  architecture_of(config.model_type, what).read(object, config);
  return config;
}

ModelConfig ModelConfig::read(const std::string& folder) {
  const std::string path = folder + "/config.json";
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  TORCH_CHECK_VALUE(file && !text.str().empty(), "the model folder ", folder,
                    " has no config.json that can be read");
  return parse(text.str(), path);
}

CausalModel make_unset_model(const ModelConfig& config, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(config == ModelConfig::parse(config.json, "the model's config"),
                    "the model's config was changed after it was read: change its JSON instead");
  name_of_dtype(dtype);  // refuses others
  return CausalModel(architecture_of(config.model_type, "the model's config").make(config, dtype));
}

CausalModel make_model(const ModelConfig& config, at::ScalarType dtype) {
  CausalModel model = make_unset_model(config, dtype);
  model->initialize_();
  return model;
}

}  // namespace fairshard::models

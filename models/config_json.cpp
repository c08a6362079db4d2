#include "config_json.h"

#include <c10/util/Exception.h>

#include <array>
#include <limits>
#include <utility>

namespace fairshard::models {
namespace {

using Json = nlohmann::json;

struct NamedDtype {
  const char* name;
  at::ScalarType dtype;
};
constexpr std::array<NamedDtype, 4> kDtypes = {{{"float32", at::kFloat},
                                                {"bfloat16", at::kBFloat16},
                                                {"float16", at::kHalf},
                                                {"float64", at::kDouble}}};

Json parsed(const std::string& text, const std::string& what) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, what, ": not JSON (", error.what(), ")");
  }
}

}  // namespace

ConfigJson::ConfigJson(const std::string& text, std::string what)
    : ConfigJson(parsed(text, what), what) {}

ConfigJson::ConfigJson(Json object, std::string what)
    : object_(std::move(object)), what_(std::move(what)) {
  TORCH_CHECK_VALUE(object_.is_object(), what_, ": an object is expected, but it is ",
                    object_.type_name());
}

bool ConfigJson::has(const char* key) const {
  const auto found = object_.find(key);
  return found != object_.end() && !found->is_null();
}

const Json& ConfigJson::at(const char* key) const {
  TORCH_CHECK_VALUE(has(key), what_, ": there is no '", key, "'");
  return object_[key];
}

void ConfigJson::refuse(const char* key, const char* wanted) const {
  TORCH_CHECK_VALUE(false, what_, ": '", key, "' is ", at(key).dump(), ", but must be ", wanted);
}

int64_t ConfigJson::size(const char* key) const {
  const Json& value = at(key);
  if (!value.is_number_unsigned() || value == 0 ||
      value.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
    refuse(key, "a whole number from 1 to 2147483647");
  }
  return value.get<int64_t>();
}

int64_t ConfigJson::size(const char* key, int64_t fallback) const {
  return has(key) ? size(key) : fallback;
}

std::optional<int64_t> ConfigJson::count(const char* key) const {
  if (!has(key)) {
    return std::nullopt;
  }
  return at(key) == 0 ? 0 : size(key);
}

double ConfigJson::number(const char* key) const {
  const Json& value = at(key);
  if (!value.is_number()) {
    refuse(key, "a number");
  }
  return value.get<double>();
}

double ConfigJson::number(const char* key, double fallback) const {
  return has(key) ? number(key) : fallback;
}

double ConfigJson::dropout(const char* key, double fallback) const {
  const double value = number(key, fallback);
  if (value < 0 || value >= 1) {
    refuse(key, "a number from 0 to below 1");
  }
  return value;
}

bool ConfigJson::flag(const char* key, bool fallback) const {
  if (!has(key)) {
    return fallback;
  }
  if (!at(key).is_boolean()) {
    refuse(key, "true or false");
  }
  return at(key).get<bool>();
}

std::string ConfigJson::text(const char* key) const {
  if (!at(key).is_string()) {
    refuse(key, "a string");
  }
  return at(key).get<std::string>();
}

std::string ConfigJson::text(const char* key, const char* fallback) const {
  return has(key) ? text(key) : fallback;
}

std::optional<ConfigJson> ConfigJson::object(const char* key) const {
  if (!has(key)) {
    return std::nullopt;
  }
  return ConfigJson(at(key), what_ + ": '" + key + "'");
}

std::vector<std::string> ConfigJson::texts(const char* key) const {
  std::vector<std::string> result;
  if (has(key)) {
    for (const Json& item : at(key)) {
      if (!item.is_string()) {
        refuse(key, "a list of strings");
      }
      result.push_back(item.get<std::string>());
    }
  }
  return result;
}

at::ScalarType dtype_named(const std::string& name, const std::string& what) {
  std::string names;
  for (const NamedDtype& known : kDtypes) {
    if (name == known.name) {
      return known.dtype;
    }
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  }
  TORCH_CHECK_VALUE(false, what, ": the dtype '", name,
                    "' is not supported; those that are: ", names);
}

std::string name_of_dtype(at::ScalarType dtype) {
  for (const NamedDtype& known : kDtypes) {
    if (dtype == known.dtype) {
      return known.name;
    }
  }
  TORCH_CHECK_VALUE(false, "a model's dtype is ", dtype,
                    ", but must be one of floating-point numbers of 16, 32 or 64 bits");
}

}  // namespace fairshard::models

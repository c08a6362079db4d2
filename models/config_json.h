#pragma once
// A config.json, with errors that name the file and the key.

#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fairshard::models {

/// An object of JSON. A key with null counts as missing, as in transformers.
class ConfigJson {
 public:
  /// `what` names it in messages.
  ConfigJson(const std::string& text, std::string what);

  const std::string& what() const { return what_; }
  bool has(const char* key) const;

  /// A whole number from 1 on.
  int64_t size(const char* key) const;
  int64_t size(const char* key, int64_t fallback) const;
  /// A whole number from 0 on.
  std::optional<int64_t> count(const char* key) const;
  double number(const char* key) const;
  double number(const char* key, double fallback) const;
  /// A number from 0 to below 1.
  double dropout(const char* key, double fallback) const;
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key) const;
  std::string text(const char* key, const char* fallback) const;
  std::optional<ConfigJson> object(const char* key) const;
  std::vector<std::string> texts(const char* key) const;

 private:
  ConfigJson(nlohmann::json object, std::string what);
  const nlohmann::json& at(const char* key) const;
  [[noreturn]] void refuse(const char* key, const char* wanted) const;

  nlohmann::json object_;
  std::string what_;
};

/// The dtype of a name such as "bfloat16", and its name. Others than floating-point numbers of 16,
/// 32 and 64 bits are refused.
at::ScalarType dtype_named(const std::string& name, const std::string& what);
std::string name_of_dtype(at::ScalarType dtype);

}  // namespace fairshard::models

#include "json.h"

#include <c10/util/Exception.h>

#include <limits>
#include <set>

namespace fairshard::store {
namespace {

constexpr int kMaxDepth = 32;

}  // namespace

Json parse_json(std::string_view text, const std::string& what) {
  // The names of each object that is open.
  std::vector<std::set<std::string>> open;
  const auto check = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      TORCH_CHECK_VALUE(depth < kMaxDepth, what, ": JSON of more than ", kMaxDepth, " levels");
    }
    if (event == Event::object_start) {
      open.emplace_back();
    } else if (event == Event::object_end) {
      open.pop_back();
    } else if (event == Event::key) {
      const auto& name = parsed.get_ref<const std::string&>();
      TORCH_CHECK_VALUE(open.back().insert(name).second, what, ": the name '", name,
                        "' stands there twice");
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, what, ": not JSON (", error.what(), ")");
  }
}

std::string dump_json(const Json& value, const std::string& what) {
  try {
    return value.dump();
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(false, what, ": cannot be written as JSON (", error.what(), ")");
  }
}

const Json& member(const Json& object, const char* name, const std::string& what) {
  TORCH_CHECK_VALUE(object.is_object(), what, ": an object is expected, but it is ",
                    object.type_name());
  const auto found = object.find(name);
  TORCH_CHECK_VALUE(found != object.end(), what, ": there is no '", name, "'");
  return *found;
}

int64_t to_count(const Json& value, const std::string& what) {
  TORCH_CHECK_VALUE(
      value.is_number_unsigned() && value.get<uint64_t>() <= std::numeric_limits<int64_t>::max(),
      what, ": a whole number from 0 on is expected, but it is ",
      value.is_number() ? value.dump() : value.type_name());
  return value.get<int64_t>();
}

std::vector<int64_t> to_counts(const Json& value, const std::string& what) {
  TORCH_CHECK_VALUE(value.is_array(), what, ": a list is expected, but it is ", value.type_name());
  std::vector<int64_t> result;
  result.reserve(value.size());
  for (const auto& item : value) {
    result.push_back(to_count(item, what));
  }
  return result;
}

const std::string& to_text(const Json& value, const std::string& what) {
  TORCH_CHECK_VALUE(value.is_string(), what, ": a string is expected, but it is ",
                    value.type_name());
  return value.get_ref<const std::string&>();
}

void check_name(const std::string& name, const std::string& what) {
  for (const char c : name) {
    const auto code = static_cast<unsigned char>(c);
    TORCH_CHECK_VALUE(code >= 0x20 && code != 0x7f, what, ": a name has the control character ",
                      static_cast<int>(code), " in it");
  }
}

}  // namespace fairshard::store

#pragma once
// JSON from strangers: of bounded depth, without a name twice, and with errors that say where.

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fairshard::store {

using Json = nlohmann::json;

/// Throws c10::ValueError; `what` names the text in the message.
Json parse_json(std::string_view text, const std::string& what);

/// The text of a value. Throws c10::ValueError if a string in it is not UTF-8.
std::string dump_json(const Json& value, const std::string& what);

/// A member of an object. `what` names the object in the message if there is no such member.
const Json& member(const Json& object, const char* name, const std::string& what);

/// A whole number from 0 to 2^63 - 1.
int64_t to_count(const Json& value, const std::string& what);
std::vector<int64_t> to_counts(const Json& value, const std::string& what);
const std::string& to_text(const Json& value, const std::string& what);

/// Refuses names that a terminal or a log could be misled by.
void check_name(const std::string& name, const std::string& what);

}  // namespace fairshard::store

#pragma once
// Tables for people.

#include <ostream>
#include <string>
#include <vector>

namespace fairshard::cli {

using Row = std::vector<std::string>;

enum class Align { kLeft, kRight };

/// Columns as wide as their widest cell. The first row is the heading; the first column is always
/// flush left, and `others` says how the rest is.
void print_table(const std::vector<Row>& rows, std::ostream& out, Align others = Align::kLeft);

}  // namespace fairshard::cli

#include "table.h"

#include <algorithm>

namespace fairshard::cli {

void print_table(const std::vector<Row>& rows, std::ostream& out, Align others) {
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      line += i > 0 ? "  " : "";
      line += i > 0 && others == Align::kRight ? space + row[i] : row[i] + space;
    }
    out << line.substr(0, line.find_last_not_of(' ') + 1) << "\n";
  }
}

}  // namespace fairshard::cli

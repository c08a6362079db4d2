#pragma once
// Files that the build puts into the program, as text; see cmake/EmbedFiles.cmake.

#include <string_view>

namespace fairshard::cli::report {

extern const std::string_view kPageHtml;
extern const std::string_view kPageCss;
extern const std::string_view kPageJs;
/// Chart.js, as its authors made it.
extern const std::string_view kChartJs;

}  // namespace fairshard::cli::report

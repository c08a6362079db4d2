#pragma once
// What the page's script is given of some runs.

#include "run_log.h"

#include <string>
#include <vector>

namespace fairshard::cli::report {

/// JSON that may stand in an HTML script element whatever the logs have in them. Curves are
/// thinned; what is missing is null.
std::string page_data(const std::vector<RunLog>& logs);

}  // namespace fairshard::cli::report

#pragma once
// Which checkpoint a user means.

#include <string>

namespace fairshard::cli {

/// The folder itself if it is a checkpoint, else the newest in it. Throws if there is none.
std::string find_checkpoint(const std::string& folder);

}  // namespace fairshard::cli

#pragma once
// What one rank writes of a checkpoint, and how all ranks' shares become a manifest.

#include <fairshard/store/manifest.h>
#include <fairshard/store/state.h>

#include <string>
#include <vector>

namespace fairshard::store {

/// Writes a rank's tensors to a file; returns, as JSON, what the manifest says of them.
std::string write_share(const State& state, const std::string& path);

/// The manifest of all ranks' shares, in rank order. Throws, with the key, if they do not fit
/// together.
Manifest merge_shares(const std::vector<std::string>& shares, int64_t step);

}  // namespace fairshard::store

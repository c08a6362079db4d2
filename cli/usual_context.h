#pragma once
// How many tokens a window has where nobody says it, for the trainer and the planner.

#include <fairshard/models/config.h>

#include <algorithm>
#include <cstdint>

namespace fairshard::cli {

/// As many as the model knows positions, but not more than a first run needs.
inline int64_t usual_context(const models::ModelConfig& config) {
  constexpr int64_t kMost = 1024;
  return std::min(kMost, config.max_position_embeddings);
}

}  // namespace fairshard::cli

#pragma once
// Which model is trained: one of our own sizes, or a folder.

#include "check.h"
#include "options.h"

#include <optional>

namespace fairshard::cli::training {

/// Fills in what --size or --model stands for. Returns what does not go with it; throws, with the
/// folder, for one that cannot be read.
std::optional<Refusal> choose_model(TrainOptions& options, const IsGiven& is_given);

}  // namespace fairshard::cli::training

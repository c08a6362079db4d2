#pragma once
// Where a run writes to, looked at before it begins: not after hours of training.

#include "check.h"
#include "options.h"

#include <optional>

namespace fairshard::cli::training {

/// Makes the folders of --save, --log and --trace, and says which of them cannot be written to. To
/// be called by the rank that writes, which is the first. No file is made or changed.
std::optional<Refusal> prepare_outputs(const TrainOptions& options);

}  // namespace fairshard::cli::training

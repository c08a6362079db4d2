#pragma once
// What a few steps of the trainer need, to set beside a prediction.

#include "predict.h"

#include <cstdint>
#include <string>
#include <vector>

namespace fairshard::cli::planning {

struct MeasureOptions {
  int64_t steps = 8;
  std::string device = "cpu";
  int threads = 0;
  std::string data;  ///< empty: the trainer's own choice
};

struct Measurement {
  MemoryPrediction memory;  ///< of the rank with the highest peak
  int64_t sent_bytes = 0;
  TimePrediction time;
};

/// The options of `fairshard train` that choose a strategy for a GPT.
std::vector<std::string> train_options(const ModelShape& model, const Strategy& strategy,
                                       const Workload& workload);

/// Runs `fairshard train` in processes of its own, and reads its log. Throws with its last words if
/// it fails. Blocks.
Measurement measure(const ModelShape& model, const Strategy& strategy, const Workload& workload,
                    const MeasureOptions& options);

}  // namespace fairshard::cli::planning

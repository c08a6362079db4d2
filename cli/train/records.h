#pragma once
// What is known of a step when it is over.

#include <cstdint>
#include <optional>

namespace fairshard::cli::training {

/// Where a step's time went, in seconds; all of it together is the step's.
struct TimeSplit {
  double data = 0;       ///< waiting for the batch
  double compute = 0;    ///< forward and backward
  double link = 0;       ///< waiting for other ranks, with nothing computed meanwhile
  double optimizer = 0;  ///< the step itself, clipping, and the outer optimizer
  double other = 0;

  double total() const { return data + compute + link + optimizer + other; }
};

struct StepRecord {
  int64_t step = 0;
  /// Since the run began or was resumed.
  double time_s = 0;
  /// The mean over ranks.
  double loss = 0;
  double lr = 0;
  TimeSplit split;
  /// By this rank.
  int64_t sent_bytes = 0;
  std::optional<double> gain;
  std::optional<double> loss_scale;
  bool is_skipped = false;
};

}  // namespace fairshard::cli::training

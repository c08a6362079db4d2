#pragma once
// Measures where a step's time goes.

#include "records.h"
#include "timeline.h"
#include <fairshard/comm/group.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <vector>

namespace fairshard::cli::training {

enum class Phase { kData, kForward, kBackward, kOptimizer, kOther };

/// One phase at a time, from begin() to end(). Local.
class StepClock {
 public:
  /// With `is_exact`, a phase ends when the device has done what was asked of it, which costs a
  /// GPU some of its overlap with the program.
  StepClock(std::vector<comm::Group> groups, at::Device device, bool is_exact, Timeline& timeline);

  void begin();
  /// What comes now belongs to this phase.
  void enter(Phase phase);
  TimeSplit end();

  /// Since this was made.
  double elapsed_s() const { return seconds(Clock::now() - start_); }
  /// By this rank, in the step that has ended or is under way.
  int64_t sent_bytes() const;

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  }

  void leave_phase();
  double waited() const;
  int64_t all_sent_bytes() const;

  std::vector<comm::Group> groups_;
  at::Device device_;
  bool is_exact_;
  Timeline& timeline_;
  Clock::time_point start_;
  Phase phase_ = Phase::kOther;
  Clock::time_point phase_start_;
  double waited_before_ = 0;
  int64_t sent_before_ = 0;
  TimeSplit split_;
};

}  // namespace fairshard::cli::training

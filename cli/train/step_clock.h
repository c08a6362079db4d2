#pragma once
// Measures where a step's time goes.

#include "records.h"
#include "timeline.h"
#include <fairshard/comm/group.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>
#include <vector>

namespace fairshard::cli::training {

enum class Phase { kData, kForward, kBackward, kOptimizer, kOther };

/// One phase at a time, from begin() to end(). Local.
class StepClock {
 public:
  /// With `is_exact`, phases are those of the device, between events on its stream; at the end of a
  /// step the host then waits for the last of them.
  StepClock(std::vector<comm::Group> groups, at::Device device, bool is_exact, Timeline& timeline);

  void begin();
  /// What comes now belongs to this phase.
  void enter(Phase phase);
  TimeSplit end();

  /// Since this was made.
  double elapsed_s() const { return seconds(Clock::now() - start_); }
  /// What this rank has waited for others, since its groups were made.
  double waited_s() const;
  /// By this rank, in the step that has ended or is under way.
  int64_t sent_bytes() const;

 private:
  using Clock = std::chrono::steady_clock;
  static double seconds(Clock::duration time) {
    return std::chrono::duration<double>(time).count();
  }

  /// Where a phase begins.
  struct Mark {
    Phase phase;
    Clock::time_point time;
    std::optional<c10::Event> event;
    double waited;
  };

  void mark(Phase phase);
  void take_device_times();
  int64_t all_sent_bytes() const;

  std::vector<comm::Group> groups_;
  at::Device device_;
  bool is_exact_;
  Timeline& timeline_;
  Clock::time_point start_;
  std::vector<Mark> marks_;
  int64_t sent_before_ = 0;
};

}  // namespace fairshard::cli::training

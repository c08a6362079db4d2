#include "step_clock.h"

#include <fairshard/comm/waits.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <utility>

namespace fairshard::cli::training {
namespace {

const char* name_of(Phase phase) {
  constexpr std::array kNames{"data", "forward", "backward", "optimizer", "other"};
  return kNames[static_cast<size_t>(phase)];
}

double& time_of(Phase phase, TimeSplit& split) {
  switch (phase) {
    case Phase::kData:
      return split.data;
    case Phase::kForward:
    case Phase::kBackward:
      return split.compute;
    case Phase::kOptimizer:
      return split.optimizer;
    case Phase::kOther:
      break;
  }
  return split.other;
}

}  // namespace

StepClock::StepClock(std::vector<comm::Group> groups, at::Device device, bool is_exact,
                     Timeline& timeline)
    : groups_(std::move(groups)),
      device_(device),
      is_exact_(is_exact && !device.is_cpu()),
      timeline_(timeline),
      start_(Clock::now()) {}

void StepClock::begin() {
  split_ = {};
  phase_ = Phase::kOther;
  phase_start_ = Clock::now();
  waited_before_ = waited();
  sent_before_ = all_sent_bytes();
}

void StepClock::enter(Phase phase) {
  leave_phase();
  phase_ = phase;
}

TimeSplit StepClock::end() {
  leave_phase();
  return split_;
}

void StepClock::leave_phase() {
  if (is_exact_) {
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  }
  const auto now = Clock::now();
  const double waited_now = waited();
  const double link = std::min(waited_now - waited_before_, seconds(now - phase_start_));
  split_.link += link;
  time_of(phase_, split_) += seconds(now - phase_start_) - link;
  if (phase_ != Phase::kOther) {
    timeline_.add("steps", name_of(phase_), phase_start_, now, {{"link_ms", 1000 * link}});
  }
  phase_start_ = now;
  waited_before_ = waited_now;
}

double StepClock::waited() const {
  double sum = 0;
  for (const auto& group : groups_) {
    sum += comm::waited_s(group);
  }
  return sum;
}

int64_t StepClock::all_sent_bytes() const {
  uint64_t sum = 0;
  for (const auto& group : groups_) {
    sum += group.traffic().sent_bytes;
  }
  return static_cast<int64_t>(sum);
}

int64_t StepClock::sent_bytes() const { return all_sent_bytes() - sent_before_; }

}  // namespace fairshard::cli::training

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
  marks_.clear();
  sent_before_ = all_sent_bytes();
  mark(Phase::kOther);
}

void StepClock::enter(Phase phase) { mark(phase); }

void StepClock::mark(Phase phase) {
  Mark& mark = marks_.emplace_back();
  mark.phase = phase;
  mark.time = Clock::now();
  mark.waited = waited_s();
  if (is_exact_) {
    mark.event.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
    mark.event->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  }
}

/// Marks get the times at which the device came to them.
void StepClock::take_device_times() {
  const Mark& last = marks_.back();
  last.event->synchronize();
  const auto now = Clock::now();
  for (Mark& mark : marks_) {
    const auto before = std::chrono::duration<double, std::milli>(
        &mark == &last ? 0.0 : mark.event->elapsedTime(*last.event));
    mark.time = now - std::chrono::duration_cast<Clock::duration>(before);
  }
}

TimeSplit StepClock::end() {
  mark(Phase::kOther);
  if (is_exact_) {
    take_device_times();
  }
  TimeSplit split{};
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    const auto& [phase, start, event, waited_before] = marks_[i];
    const Mark& next = marks_[i + 1];
    const double time = seconds(next.time - start);
    const double link = std::min(next.waited - waited_before, time);
    split.link += link;
    time_of(phase, split) += time - link;
    if (phase != Phase::kOther) {
      timeline_.add("steps", name_of(phase), start, next.time, {{"link_ms", 1000 * link}});
    }
  }
  return split;
}

double StepClock::waited_s() const {
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

#pragma once
// One pass over memory: gradient in (bfloat16), state and master weight in float32, weight out
// (bfloat16). ATen has no such operator.

#include <fairshard/page/step_options.h>

namespace fairshard::page {

/// What is stepped.
struct StepTarget {
  at::Tensor parameter;
  at::Tensor image;
  at::Tensor gradient;
  StepOptions options;
  StepState state;
};

/// Whether step_range can do it; otherwise step_whole can.
bool is_for_ranges(const StepTarget& target);

/// Counts the step of a target, before its ranges.
void count_step(const StepTarget& target);

/// Steps elements [begin, end) in memory order. Any thread, ranges apart from each other.
void step_range(const StepTarget& target, int64_t begin, int64_t end);

/// Steps a target with ATen's fused operator, so with the bits of torch's own optimizers, and sets
/// the image.
void step_whole(const StepTarget& target);

}  // namespace fairshard::page

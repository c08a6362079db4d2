#pragma once
// Master weights: values in full precision that others see rounded.

#include <ATen/core/Tensor.h>

namespace fairshard::shard {

/// Has `master`, whose values `rounded` has in the precision of `dtype`, follow what somebody has
/// written to `rounded`: elements that are no longer the master's rounded ones were set, and rule.
void follow_writes(const at::Tensor& master, const at::Tensor& rounded, at::ScalarType dtype);

}  // namespace fairshard::shard

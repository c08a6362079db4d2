#pragma once
// Exact copies of values that others see rounded.

#include <ATen/core/Tensor.h>

namespace fairshard::shard {

/// Makes `copy`, whose values `rounded` has in the precision of `dtype`, follow what somebody has
/// written to `rounded`: elements that are no longer the copy's rounded ones were set, and rule.
void follow_rounded(const at::Tensor& copy, const at::Tensor& rounded, at::ScalarType dtype);

}  // namespace fairshard::shard

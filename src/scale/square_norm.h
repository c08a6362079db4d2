#pragma once
// Square norms of gradients, and sums of many of them, on whatever device they are.

#include <ATen/core/Tensor.h>

#include <vector>

namespace fairshard::scale {

/// The sum of the squares of all elements, in float32 or more.
at::Tensor square_norm(const at::Tensor& tensor);

/// The sum of many scalars, in float64. There may be thousands of them, so that each costs as
/// little as it can: they are added up all at once. Undefined if there are none.
at::Tensor total(const std::vector<at::Tensor>& scalars);

/// Adds a scalar to a sum; either may be undefined, which counts as 0.
void add(at::Tensor& sum, const at::Tensor& scalar);

/// Scalars as one tensor of float64 on a device. An undefined one counts as 0.
at::Tensor joined(const std::vector<at::Tensor>& scalars, at::Device device);

}  // namespace fairshard::scale

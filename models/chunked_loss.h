#pragma once
// Cross entropy over a large vocabulary, without all logits at a time.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fairshard::models {

/// The mean cross entropy, in float32, of logits hidden * weight^T {positions, vocabulary} against
/// labels {positions}, of which those of -100 do not count. Logits are made for `chunk` positions
/// at a time (0: 128 MiB of them, in float32), and again in backward.
at::Tensor chunked_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                 const at::Tensor& labels, int64_t chunk);

}  // namespace fairshard::models

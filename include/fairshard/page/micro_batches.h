#pragma once
// A batch in equal parts, which every slice computes one after another.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fairshard::page {

/// The tensors of each part: all are cut along their first dimension.
std::vector<std::vector<at::Tensor>> cut_batch(const std::vector<at::Tensor>& tensors,
                                               int64_t num_microbatches);
/// What the parts gave, as one batch.
std::vector<at::Tensor> join_batches(const std::vector<std::vector<at::Tensor>>& parts);

}  // namespace fairshard::page

#pragma once
// Reductions of several ranks' parts on this rank, always in rank order: the same bits every time.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace fairshard::comm {

using RedOp = c10d::ReduceOp::RedOpType;

/// Whether tensors of this dtype can be reduced at all.
bool is_reducible(at::ScalarType dtype, RedOp op);

/// Whether sums of the one may be left in the other.
inline bool widens(at::ScalarType from, at::ScalarType to) {
  return to == at::kFloat && (from == at::kHalf || from == at::kBFloat16);
}

/// Writes the reduction of `parts` (one per rank, all of one size) to `output`, which may share
/// memory with parts[rank] but with no other. Half precision is summed in float32. The other parts
/// are scratch: they may be overwritten.
void reduce_in_rank_order(const at::Tensor& output, const std::vector<at::Tensor>& parts, int rank,
                          RedOp op);

}  // namespace fairshard::comm

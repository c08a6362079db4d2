#pragma once
// The norm of gradients that are partitioned across ranks, and clipping by it.

#include <fairshard/shard/flat_group.h>

#include <functional>
#include <memory>
#include <vector>

namespace fairshard::shard {

/// Scales the gradients so that their norm over all parameters and ranks is at most `max_norm`, and
/// returns the norm before that, as torch's clip_grad_norm_ does: in float64 if a parameter is.
/// `norm_type` is any positive number or infinity. With `selects`, only the parameters that it is
/// true for count and are scaled; it says the same on all ranks. Collective over the parameters'
/// group; blocks.
at::Tensor clip_gradients(
    const std::vector<std::shared_ptr<FlatGroup>>& groups, double max_norm, double norm_type,
    const std::function<bool(const at::Tensor& parameter)>& selects = nullptr);

}  // namespace fairshard::shard

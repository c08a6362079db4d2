#pragma once
// One broadcast for many tensors.

#include <fairshard/comm/group.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace fairshard::comm {

/// Makes every rank's tensors those of `root`, in place. Small ones of one dtype travel together,
/// since each message costs as much as some ten thousand bytes. Undefined tensors are left out;
/// others may have any strides. Collective; blocks.
void broadcast_all(const Group& group, const std::vector<at::Tensor>& tensors, int root,
                   const std::string& label = "");

}  // namespace fairshard::comm

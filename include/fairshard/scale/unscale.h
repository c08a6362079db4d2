#pragma once
// scale/ keeps gradients in range. Here: scaled gradients become true ones, on all ranks or none.

#include <fairshard/comm/group.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace fairshard::scale {

/// Multiplies the gradients by `inverse_scale`, in place, and returns a tensor of one float: 1 if
/// any of them, on any rank, is infinite or not a number, else 0. Ranks may have different numbers
/// of gradients, also none; `device` says where the answer is wanted. Collective; blocks.
at::Tensor unscale(const comm::Group& group, const std::vector<at::Tensor>& gradients,
                   const at::Tensor& inverse_scale, at::Device device);

/// The gradients of parameters as memory that may be changed: of sparse ones their values, of which
/// there is one for each place then.
std::vector<at::Tensor> gradient_memory(const std::vector<at::Tensor>& parameters);

}  // namespace fairshard::scale

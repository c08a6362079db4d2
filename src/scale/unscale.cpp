#include <fairshard/comm/collectives.h>
#include <fairshard/scale/unscale.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <tuple>

namespace fairshard::scale {

at::Tensor unscale(const comm::Group& group, const std::vector<at::Tensor>& gradients,
                   const at::Tensor& inverse_scale, at::Device device) {
  const at::NoGradGuard no_grad;
  const at::Tensor found = at::zeros({1}, at::TensorOptions(at::kFloat).device(device));
  // ATen wants one device and dtype in a call.
  std::map<std::tuple<at::DeviceType, at::DeviceIndex, at::ScalarType>, std::vector<at::Tensor>>
      kinds;
  for (const auto& gradient : gradients) {
    kinds[{gradient.device().type(), gradient.device().index(), gradient.scalar_type()}].push_back(
        gradient);
  }
  for (auto& [kind, tensors] : kinds) {
    const at::Device here = tensors[0].device();
    at::Tensor found_here = here == device ? found : at::zeros({1}, found.options().device(here));
    at::_amp_foreach_non_finite_check_and_unscale_(tensors, found_here, inverse_scale.to(here));
    if (here != device) {
      found.add_(found_here.to(device));
    }
  }
  comm::all_reduce(group, found, comm::ReduceOp::kMax, "found infinities").wait();
  return found.clamp_max_(1);
}

std::vector<at::Tensor> gradient_memory(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) {
      continue;
    }
    if (gradient.is_sparse() && gradient.scalar_type() == at::kHalf) {
      gradient = gradient.coalesce();  // sums of infinities are seen only then
    }
    result.push_back(gradient.is_sparse() ? gradient._values() : gradient);
  }
  return result;
}

}  // namespace fairshard::scale

#include <fairshard/comm/collectives.h>
#include <fairshard/shard/clip.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace fairshard::shard {
namespace {

/// The sum of the powers of all elements, or the largest if the norm is infinite, over all ranks.
at::Tensor reduced_powers(const FlatParameters& parameters, double norm_type) {
  at::Tensor total = at::zeros({}, at::kDouble);
  for (const Slice& slice : parameters.slices()) {
    const at::Tensor gradient = parameters.gradient_of(slice);
    if (!gradient.defined()) {
      continue;
    }
    const at::Tensor norm =
        at::linalg_vector_norm(gradient.to(at::kFloat), norm_type).to(at::kDouble);
    total = total.to(norm.device());
    total = std::isinf(norm_type) ? at::maximum(total, norm) : total + norm.pow(norm_type);
  }
  // Ranks whose range is empty have their zero elsewhere; a collective wants one device.
  const at::Tensor reduced = parameters.slices().empty() && !parameters.parameters().empty()
                                 ? total.to(parameters.parameters()[0].tensor.device())
                                 : total;
  comm::all_reduce(parameters.group(), reduced,
                   std::isinf(norm_type) ? comm::ReduceOp::kMax : comm::ReduceOp::kSum,
                   "gradient norm")
      .wait();
  return reduced;
}

/// Delivered ranges and, where there are none, the whole .grad, which other ranks scale alike.
void scale(FlatParameters& parameters, const at::Tensor& factor) {
  const auto& buckets = parameters.plan().buckets();
  for (size_t b = 0; b < buckets.size(); ++b) {
    if (parameters.has_gradients(b)) {
      parameters.gradient_range(b).mul_(factor);
      continue;
    }
    for (const Slot& slot : buckets[b].slots) {
      at::Tensor gradient = parameters.parameters()[slot.parameter].tensor.grad();
      if (gradient.defined()) {
        gradient.mul_(factor);
      }
    }
  }
}

}  // namespace

at::Tensor clip_gradients(const std::vector<std::shared_ptr<FlatParameters>>& parameters,
                          double max_norm, double norm_type) {
  TORCH_CHECK_VALUE(norm_type > 0, "norm_type is ", norm_type, ", but must be above 0");
  TORCH_CHECK_VALUE(max_norm >= 0, "max_norm is ", max_norm, ", but must not be negative");
  const at::NoGradGuard no_grad;
  at::Tensor total = at::zeros({}, at::kDouble);
  for (const auto& part : parameters) {
    const at::Tensor powers = reduced_powers(*part, norm_type);
    total = total.to(powers.device());
    total = std::isinf(norm_type) ? at::maximum(total, powers) : total + powers;
  }
  if (!std::isinf(norm_type)) {
    total = total.pow(1 / norm_type);
  }
  const at::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (const auto& part : parameters) {
    scale(*part, factor);
  }
  return total.to(at::kFloat);
}

}  // namespace fairshard::shard

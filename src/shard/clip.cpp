#include <fairshard/comm/collectives.h>
#include <fairshard/shard/clip.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace fairshard::shard {
namespace {

using Selects = std::function<bool(const at::Tensor&)>;

/// This rank's part of the sum of the powers of all elements, or the largest if the norm is
/// infinite.
at::Tensor own_powers(const FlatParameters& part, double norm_type, const Selects& selects) {
  std::vector<at::Tensor> gradients;
  for (const auto& [parameter, gradient] : part.gradients().by_parameter()) {
    if (!selects || selects(parameter)) {
      gradients.push_back(gradient);
    }
  }
  if (gradients.empty()) {
    const bool is_empty = part.plan().buckets().empty();
    return at::zeros({}, at::TensorOptions(at::kDouble)
                             .device(is_empty ? at::kCPU : part.plan().buckets()[0].device));
  }
  const auto norms = at::_foreach_norm(gradients, norm_type, at::kFloat);
  const at::Tensor all = at::stack(norms).to(at::kDouble);
  return std::isinf(norm_type) ? all.max() : all.pow(norm_type).sum();
}

/// Delivered gradients and, where there are none, the whole .grad, which other ranks scale alike.
std::vector<at::Tensor> selected_gradients(const FlatParameters& part, const Selects& selects) {
  std::vector<at::Tensor> gradients;
  for (const Slice& slice : part.slices()) {
    const at::Tensor& tensor = part.parameters()[slice.piece.parameter].tensor;
    const at::Tensor gradient = tensor.grad().defined() ? at::Tensor() : part.gradients().of(slice);
    if (gradient.defined() && selects(tensor)) {
      gradients.push_back(gradient);
    }
  }
  for (const Parameter& parameter : part.parameters()) {
    if (parameter.tensor.grad().defined() && selects(parameter.tensor)) {
      gradients.push_back(parameter.tensor.grad());
    }
  }
  return gradients;
}

}  // namespace

at::Tensor clip_gradients(const std::vector<std::shared_ptr<FlatParameters>>& parts,
                          double max_norm, double norm_type, const Selects& selects) {
  TORCH_CHECK_VALUE(norm_type > 0, "norm_type is ", norm_type, ", but must be above 0");
  TORCH_CHECK_VALUE(max_norm >= 0, "max_norm is ", max_norm, ", but must not be negative");
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> powers;
  for (const auto& part : parts) {
    TORCH_CHECK(!part->on_reduced,
                "gradients cannot be clipped with step_in_backward, which drops them one by one");
    const at::Tensor own = own_powers(*part, norm_type, selects);
    powers.push_back(powers.empty() ? own : own.to(powers[0].device()));
  }
  const at::Tensor stacked = at::stack(powers);
  at::Tensor total = std::isinf(norm_type) ? stacked.max() : stacked.sum();
  comm::all_reduce(parts[0]->group(), total,
                   std::isinf(norm_type) ? comm::ReduceOp::kMax : comm::ReduceOp::kSum,
                   "gradient norm")
      .wait();
  if (!std::isinf(norm_type)) {
    total = total.pow(1 / norm_type);
  }
  const at::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (const auto& part : parts) {
    const auto gradients =
        selects ? selected_gradients(*part, selects) : part->gradients().memory();
    if (!gradients.empty()) {
      at::_foreach_mul_(gradients, factor);
    }
  }
  return total.to(at::kFloat);
}

}  // namespace fairshard::shard

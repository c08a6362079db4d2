#include <fairshard/comm/collectives.h>
#include <fairshard/comm/profiler_range.h>
#include <fairshard/shard/clip.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace fairshard::shard {
namespace {

using Selects = std::function<bool(const at::Tensor&)>;

/// This rank's part of the sum of the powers of all elements, or the largest if the norm is
/// infinite.
at::Tensor own_powers(const FlatGroup& group, double norm_type, const Selects& selects) {
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> of_doubles;
  for (const Slice& slice : group.slices()) {
    const at::Tensor& parameter = group.parameters()[slice.piece.parameter].tensor;
    const at::Tensor gradient =
        !selects || selects(parameter) ? group.gradients().of(slice) : at::Tensor();
    if (gradient.defined()) {
      (gradient.scalar_type() == at::kDouble ? of_doubles : gradients).push_back(gradient);
    }
  }
  std::vector<at::Tensor> norms;
  if (!gradients.empty()) {
    norms.push_back(at::stack(at::_foreach_norm(gradients, norm_type, at::kFloat)).to(at::kDouble));
  }
  if (!of_doubles.empty()) {
    norms.push_back(at::stack(at::_foreach_norm(of_doubles, norm_type)));
  }
  if (norms.empty()) {
    const bool is_empty = group.layout().buckets().empty();
    return at::zeros({}, at::TensorOptions(at::kDouble)
                             .device(is_empty ? at::kCPU : group.bucket(0).flat().device()));
  }
  const at::Tensor all = at::cat(norms);
  return std::isinf(norm_type) ? all.max() : all.pow(norm_type).sum();
}

/// Reduced gradients and, where there are none, the whole .grad, which other ranks scale alike.
std::vector<at::Tensor> selected_gradients(const FlatGroup& group, const Selects& selects) {
  std::vector<at::Tensor> gradients;
  for (const Slice& slice : group.slices()) {
    const at::Tensor& tensor = group.parameters()[slice.piece.parameter].tensor;
    const at::Tensor gradient =
        whole_grad(tensor).defined() ? at::Tensor() : group.gradients().of(slice);
    if (gradient.defined() && selects(tensor)) {
      gradients.push_back(gradient);
    }
  }
  for (const Parameter& parameter : group.parameters()) {
    const at::Tensor gradient = whole_grad(parameter.tensor);
    if (gradient.defined() && selects(parameter.tensor)) {
      gradients.push_back(gradient);
    }
  }
  return gradients;
}

/// By the parameters, which are the same on all ranks, and not by the gradients that this one has.
bool has_doubles(const std::vector<std::shared_ptr<FlatGroup>>& groups, const Selects& selects) {
  return std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
    const auto& parameters = group->parameters();
    return std::any_of(parameters.begin(), parameters.end(), [&](const Parameter& parameter) {
      return parameter.tensor.scalar_type() == at::kDouble &&
             (!selects || selects(parameter.tensor));
    });
  });
}

}  // namespace

at::Tensor clip_gradients(const std::vector<std::shared_ptr<FlatGroup>>& groups, double max_norm,
                          double norm_type, const Selects& selects) {
  TORCH_CHECK_VALUE(norm_type > 0, "norm_type is ", norm_type, ", but must be above 0");
  TORCH_CHECK_VALUE(max_norm >= 0, "max_norm is ", max_norm, ", but must not be negative");
  const at::NoGradGuard no_grad;
  const comm::ProfilerRange range([] { return "clip"; });
  std::vector<at::Tensor> powers;
  for (const auto& group : groups) {
    const at::Tensor own = own_powers(*group, norm_type, selects);
    powers.push_back(powers.empty() ? own : own.to(powers[0].device()));
  }
  const at::Tensor stacked = at::stack(powers);
  at::Tensor total = std::isinf(norm_type) ? stacked.max() : stacked.sum();
  comm::all_reduce(groups[0]->group(), total,
                   std::isinf(norm_type) ? comm::ReduceOp::kMax : comm::ReduceOp::kSum,
                   "gradient norm")
      .wait();
  if (!std::isinf(norm_type)) {
    total = total.pow(1 / norm_type);
  }
  const at::Tensor factor = (max_norm / (total + 1e-6)).clamp_max(1.0);
  for (const auto& group : groups) {
    const auto gradients =
        selects ? selected_gradients(*group, selects) : group->gradients().memory();
    if (!gradients.empty()) {
      at::_foreach_mul_(gradients, factor);
    }
  }
  return total.to(has_doubles(groups, selects) ? at::kDouble : at::kFloat);
}

}  // namespace fairshard::shard

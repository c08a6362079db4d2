#include "square_norm.h"

#include <ATen/ops/dot.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>

namespace fairshard::scale {

at::Tensor square_norm(const at::Tensor& tensor) {
  at::Tensor values = tensor.is_sparse() ? tensor.coalesce().values() : tensor;
  values = values.is_complex() ? at::view_as_real(values.resolve_conj()) : values;
  const bool is_wide = c10::elementSize(values.scalar_type()) >= sizeof(float);
  if (values.is_cpu() && is_wide && values.is_contiguous()) {
    const at::Tensor flat = values.view(-1);  // by far the fastest there
    return at::dot(flat, flat);
  }
  const auto dtype = is_wide ? values.scalar_type() : at::kFloat;
  return at::linalg_vector_norm(values, 2, std::nullopt, false, dtype).square();
}

at::Tensor total(const std::vector<at::Tensor>& scalars) {
  if (scalars.empty()) {
    return {};
  }
  std::vector<at::Tensor> together;
  together.reserve(scalars.size());
  for (const auto& scalar : scalars) {
    together.push_back(scalar.to(scalars[0].device()));
  }
  return at::stack(together).sum(at::kDouble);
}

void add(at::Tensor& sum, const at::Tensor& scalar) {
  if (scalar.defined()) {
    sum = sum.defined() ? sum + scalar : scalar;
  }
}

at::Tensor joined(const std::vector<at::Tensor>& scalars, at::Device device) {
  const auto options = at::TensorOptions(at::kDouble).device(device);
  std::vector<at::Tensor> result;
  result.reserve(scalars.size());
  for (const auto& scalar : scalars) {
    result.push_back(scalar.defined() ? scalar.to(device) : at::zeros({}, options));
  }
  return at::stack(result);
}

}  // namespace fairshard::scale

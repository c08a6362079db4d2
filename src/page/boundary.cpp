#include "boundary.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace fairshard::page {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

struct Crossing : torch::CustomClassHolder {
  std::shared_ptr<Pager> pager;
  int64_t from = Pager::kNone;
  int64_t to = Pager::kNone;
};

}  // namespace

struct Boundary : torch::autograd::Function<Boundary> {
  static variable_list forward(AutogradContext* context, c10::intrusive_ptr<Crossing> crossing,
                               at::TensorList values) {
    context->saved_data["crossing"] = c10::IValue::make_capsule(std::move(crossing));
    context->set_materialize_grads(false);
    variable_list result;
    for (const at::Tensor& value : values) {
      // No view, so that a layer may work in place; the same version counter, so that autograd
      // still notices what it must not.
      result.push_back(value.tensor_data());
    }
    return result;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto capsule = context->saved_data["crossing"].toCapsule();
    const auto& crossing = static_cast<const Crossing&>(*capsule);
    crossing.pager->cross_backward(crossing.from, crossing.to);
    gradients.insert(gradients.begin(), at::Tensor());  // the crossing is no tensor
    return gradients;
  }
};

std::vector<at::Tensor> mark_boundary(const std::shared_ptr<Pager>& pager, int64_t from, int64_t to,
                                      const std::vector<at::Tensor>& values) {
  variable_list with_gradient;
  for (const at::Tensor& value : values) {
    if (value.requires_grad()) {
      with_gradient.push_back(value);
    }
  }
  if (with_gradient.empty() || !at::GradMode::is_enabled()) {
    return values;
  }
  auto crossing = c10::make_intrusive<Crossing>();
  crossing->pager = pager;
  crossing->from = from;
  crossing->to = to;
  const variable_list marked = Boundary::apply(std::move(crossing), at::TensorList(with_gradient));
  variable_list result;
  auto next = marked.begin();
  for (const at::Tensor& value : values) {
    result.push_back(value.requires_grad() ? *next++ : value);
  }
  return result;
}

}  // namespace fairshard::page

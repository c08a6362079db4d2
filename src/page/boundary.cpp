#include "boundary.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace fairshard::page {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

struct Crossing : torch::CustomClassHolder {
  explicit Crossing(std::function<void()> f) : cross(std::move(f)) {}
  const std::function<void()> cross;
};

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
    static_cast<const Crossing&>(*capsule).cross();
    gradients.insert(gradients.begin(), at::Tensor());  // the crossing is no tensor
    return gradients;
  }
};

}  // namespace

std::vector<at::Tensor> mark_boundary(const std::vector<at::Tensor>& values,
                                      std::function<void()> cross) {
  variable_list with_gradient;
  for (const at::Tensor& value : values) {
    if (value.requires_grad()) {
      with_gradient.push_back(value);
    }
  }
  if (with_gradient.empty() || !at::GradMode::is_enabled()) {
    return values;
  }
  const variable_list marked = Boundary::apply(c10::make_intrusive<Crossing>(std::move(cross)),
                                               at::TensorList(with_gradient));
  variable_list result;
  auto next = marked.begin();
  for (const at::Tensor& value : values) {
    result.push_back(value.requires_grad() ? *next++ : value);
  }
  return result;
}

}  // namespace fairshard::page

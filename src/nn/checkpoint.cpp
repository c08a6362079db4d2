#include "../amp/autocast_state.h"
#include "rng_state.h"
#include <fairshard/nn/checkpoint.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <unordered_set>

namespace fairshard::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Run = std::function<TensorVector(const TensorVector&)>;

/// All that a second run needs to be as the first. Made before the first.
struct Recipe : torch::CustomClassHolder {
  Run run;
  RngState rng;
  AutocastState autocast;
  /// What the run uses besides its inputs: parameters that require a gradient.
  variable_list leaves;
  /// Results of the first run, on their way out.
  variable_list outputs;
};

variable_list detached(at::TensorList tensors) {
  variable_list result;
  for (const auto& tensor : tensors) {
    result.push_back(tensor.defined() ? tensor.detach().requires_grad_(tensor.requires_grad())
                                      : tensor);
  }
  return result;
}

/// Tensors whose gradients the graph under `outputs` would accumulate, without `inputs`.
variable_list find_leaves(const variable_list& outputs, const variable_list& inputs) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const auto& input : inputs) {
    known.insert(input.unsafeGetTensorImpl());
  }
  variable_list leaves;
  std::unordered_set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  const auto visit = [&](torch::autograd::Node* node) {
    if (node && seen.insert(node).second) {
      open.push_back(node);
    }
  };
  for (const auto& output : outputs) {
    if (output.defined()) {
      visit(output.grad_fn().get());
      if (output.is_leaf() && output.requires_grad() &&
          known.insert(output.unsafeGetTensorImpl()).second) {
        leaves.push_back(output);
      }
    }
  }
  while (!open.empty()) {
    auto* const node = open.back();
    open.pop_back();
    if (const auto* accumulate = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      if (known.insert(accumulate->variable.unsafeGetTensorImpl()).second) {
        leaves.push_back(accumulate->variable);
      }
    }
    for (const auto& edge : node->next_edges()) {
      visit(edge.function.get());
    }
  }
  return leaves;
}

/// Note [Checkpoints and reducers]: the leaves are inputs of this function, so that their gradients
/// leave it by the outer graph and are accumulated there, with all hooks. A backward inside of
/// backward that accumulates by itself would run the end-of-backward callbacks of a reducer while
/// gradients are still to come.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static variable_list forward(AutogradContext* context, c10::intrusive_ptr<Recipe> recipe,
                               at::TensorList inputs_and_leaves) {
    const size_t inputs = inputs_and_leaves.size() - recipe->leaves.size();
    context->save_for_backward(inputs_and_leaves.slice(0, inputs).vec());
    variable_list outputs = std::exchange(recipe->outputs, {});
    variable_list constants;
    for (const auto& output : outputs) {
      if (output.defined() && !output.is_floating_point() && !output.is_complex()) {
        constants.push_back(output);
      }
    }
    context->mark_non_differentiable(constants);
    context->saved_data["recipe"] = c10::IValue::make_capsule(std::move(recipe));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["recipe"].toCapsule();
    const auto& recipe = static_cast<const Recipe&>(*capsule);
    const variable_list inputs = detached(context->get_saved_variables());
    const variable_list outputs = run_again(recipe, inputs);
    variable_list roots;
    variable_list root_gradients;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].defined() && outputs[i].requires_grad() && gradients[i].defined()) {
        roots.push_back(outputs[i]);
        root_gradients.push_back(gradients[i]);
      }
    }
    variable_list all = inputs;
    all.insert(all.end(), recipe.leaves.begin(), recipe.leaves.end());
    variable_list wanted;
    for (const auto& tensor : all) {
      if (needs_gradient(tensor)) {
        wanted.push_back(tensor);
      }
    }
    variable_list found(wanted.size());
    if (!roots.empty() && !wanted.empty()) {
      found = torch::autograd::grad(roots, wanted, root_gradients, /*retain_graph=*/false,
                                    /*create_graph=*/false, /*allow_unused=*/true);
    }
    variable_list result(1);  // the recipe is no tensor
    auto next = found.begin();
    for (const auto& tensor : all) {
      result.push_back(needs_gradient(tensor) ? *next++ : at::Tensor());
    }
    return result;
  }

  static bool needs_gradient(const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  }

  static variable_list run_again(const Recipe& recipe, const variable_list& inputs) {
    const RngGuard rng(recipe.rng);
    const AutocastStateGuard autocast(recipe.autocast);
    const at::AutoGradMode grad(true);
    return recipe.run(inputs);
  }
};

}  // namespace

TensorVector checkpoint_tensors(Run run, const TensorVector& inputs) {
  if (!at::GradMode::is_enabled()) {
    return run(inputs);
  }
  auto recipe = c10::make_intrusive<Recipe>();
  recipe->run = std::move(run);
  const variable_list own_inputs = detached(inputs);
  {
    // With gradients on, so that the graph tells which parameters are used; it is dropped at once.
    const variable_list outputs = recipe->run(own_inputs);
    recipe->leaves = find_leaves(outputs, own_inputs);
    for (const auto& output : outputs) {
      recipe->outputs.push_back(output.defined() ? output.detach() : output);
    }
  }
  variable_list all = inputs;
  all.insert(all.end(), recipe->leaves.begin(), recipe->leaves.end());
  return Checkpoint::apply(std::move(recipe), at::TensorList(all));
}

}  // namespace fairshard::detail

#include "second_run.h"

#include "../amp/no_autocast_cache.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace fairshard::detail {
namespace {

/// By a pointer, so that the expression has no effect that typeid would evaluate.
std::type_index type_of(const torch::autograd::Node* node) { return typeid(*node); }

const torch::autograd::AccumulateGrad* as_accumulator(const torch::autograd::Node& node) {
  return dynamic_cast<const torch::autograd::AccumulateGrad*>(&node);
}

}  // namespace

TensorVector detached(const TensorVector& tensors) {
  TensorVector result;
  for (const auto& tensor : tensors) {
    result.push_back(tensor.defined() ? tensor.detach().requires_grad_(tensor.requires_grad())
                                      : tensor);
  }
  return result;
}

Operations operations_under(const TensorVector& results,
                            const std::function<bool(const NodePointer&)>& is_end) {
  Operations found;
  std::unordered_set<const torch::autograd::Node*> seen;
  const auto visit = [&](const NodePointer& node) {
    if (!node || !seen.insert(node.get()).second) {
      return;
    }
    if (const auto* const accumulator = as_accumulator(*node)) {
      found.leaves.push_back(accumulator->variable);
    } else {
      (is_end(node) ? found.ends : found.nodes).push_back(node);
    }
  };
  for (const auto& result : results) {
    if (result.defined()) {
      visit(result.grad_fn());
    }
  }
  for (size_t i = 0; i < found.nodes.size(); ++i) {
    const NodePointer node = found.nodes[i];  // the vector grows
    for (const auto& edge : node->next_edges()) {
      visit(edge.function);
    }
  }
  return found;
}

SecondRun::SecondRun(Run run, const TensorVector& inputs) : run_(std::move(run)) {
  for (const auto& input : inputs) {
    inputs_.emplace_back(input, /*is_output=*/false);
  }
}

void SecondRun::expect(const Operations& first) {
  for (const auto& node : first.nodes) {
    expected_.push_back({type_of(node.get()), node->next_edges().size()});
  }
  ends_ = first.ends;
  for (const auto& leaf : first.leaves) {
    const auto& counter = torch::autograd::impl::version_counter(leaf);
    leaves_.push_back({counter, counter.current_version(), leaf.sizes().vec()});
  }
}

/// torch refuses a backward through what has changed since; here the second run would use the new
/// values without a word.
void SecondRun::check_leaves() const {
  for (const auto& leaf : leaves_) {
    TORCH_CHECK(leaf.counter.current_version() == leaf.version, "checkpoint: a parameter of shape ",
                at::IntArrayRef(leaf.sizes),
                " was modified by an inplace operation between forward and backward (its version "
                "is ",
                leaf.counter.current_version(), ", and was ", leaf.version,
                "): the second run would compute with other values than the first. Step after the "
                "last backward");
  }
}

NodePointer SecondRun::take(size_t number) {
  const std::lock_guard lock(mutex_);
  const int backward = torch::autograd::get_current_graph_task_id();
  if (backward_ != backward || !operations_.at(number)) {
    run_again();
    backward_ = backward;
  }
  return std::exchange(operations_.at(number), nullptr);
}

void SecondRun::run_again() {
  TensorVector inputs;
  for (const auto& input : inputs_) {
    inputs.push_back(input.unpack());
  }
  check_leaves();
  inputs = detached(inputs);
  TensorVector results;
  {
    const RngGuard rng(rng_);
    const AutocastStateGuard autocast(autocast_);
    const NoAutocastCache no_cache;
    const at::AutoGradMode grad(true);
    results = run_(inputs);
  }
  auto again = operations_under(results, [this](const NodePointer& node) {
    return std::find(ends_.begin(), ends_.end(), node) != ends_.end();
  });
  check(again.nodes);
  operations_ = std::move(again.nodes);
  if (!torch::autograd::get_current_graph_task_keep_graph()) {
    for (auto& input : inputs_) {
      input.reset_data();  // what is still needed of it, the operations have
    }
  }
}

void SecondRun::check(const std::vector<NodePointer>& nodes) const {
  constexpr const char* kOtherwise =
      "checkpoint: the function did something else in its second run than in its first: ";
  for (size_t i = 0; i < std::min(nodes.size(), expected_.size()); ++i) {
    const auto type = type_of(nodes[i].get());
    TORCH_CHECK(type == expected_[i].type && nodes[i]->next_edges().size() == expected_[i].edges,
                kOtherwise, "a result came by ", c10::demangle(expected_[i].type.name()),
                ", and then by ", c10::demangle(type.name()));
  }
  TORCH_CHECK(nodes.size() == expected_.size(), kOtherwise, "its gradients went through ",
              expected_.size(), " operations, and then through ", nodes.size());
}

}  // namespace fairshard::detail

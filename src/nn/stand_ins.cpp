#include "stand_ins.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <type_traits>
#include <utility>

namespace fairshard::detail {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// See Note [Stand-ins].
class StandIn final : public Node {
 public:
  StandIn(const Node& operation, edge_list&& edges, std::shared_ptr<SecondRun> run, size_t number)
      : Node(operation.sequence_nr(), std::move(edges)), run_(std::move(run)), number_(number) {
    for (size_t i = 0; i < operation.num_inputs(); ++i) {
      input_metadata_.push_back(operation.input_metadata(i));
    }
  }

 private:
  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(!at::GradMode::is_enabled(),
                "checkpoint: gradients of gradients (create_graph) cannot be computed through it");
    const NodePointer operation = run_->take(number_);
    // It asks where its gradients go for which of them are wanted.
    operation->next_edges() = next_edges();
    variable_list result = call_with_hooks(*operation, std::move(gradients));
    operation->release_variables();
    return result;
  }

  /// Hooks that the function itself has registered.
  static variable_list call_with_hooks(Node& operation, variable_list&& gradients) {
    for (const auto* hooks : {&operation.tensor_pre_hooks(), &operation.pre_hooks()}) {
      for (const auto& hook : *hooks) {
        gradients = (*hook)(gradients);
      }
    }
    if (operation.post_hooks().empty()) {
      return operation(std::move(gradients));
    }
    const variable_list before = gradients;
    variable_list result = operation(std::move(gradients));
    for (const auto& hook : operation.post_hooks()) {
      result = (*hook)(result, before);
    }
    return result;
  }

  std::shared_ptr<SecondRun> run_;
  size_t number_;
};

/// A template, so that only the branch of this torch is compiled.
template <typename Pointer, typename... Arguments>
Pointer make_stand_in(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    // With torch's own way to free long chains of nodes without recursion.
    return Pointer(new StandIn(std::forward<Arguments>(arguments)...),
                   [](auto* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<StandIn>(std::forward<Arguments>(arguments)...);
  }
}

/// Numbers of nodes, the oldest first: no node has an edge to a later one.
std::vector<size_t> by_age(const std::vector<NodePointer>& nodes) {
  std::vector<size_t> numbers(nodes.size());
  std::iota(numbers.begin(), numbers.end(), size_t{0});
  std::ranges::sort(numbers, {}, [&](size_t i) { return nodes[i]->sequence_nr(); });
  return numbers;
}

}  // namespace

StandIns::StandIns(const std::shared_ptr<SecondRun>& run, const TensorVector& results,
                   uint64_t since, const TensorVector& detached_inputs, const TensorVector& inputs)
    : detached_inputs_(detached_inputs), inputs_(inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    // One that the function has not used has none.
    const auto accumulator =
        inputs[i].defined() ? torch::autograd::impl::try_get_grad_accumulator(detached_inputs[i])
                            : nullptr;
    if (accumulator) {
      replacements_[accumulator.get()] = torch::autograd::impl::gradient_edge(inputs[i]);
    }
  }
  const uint64_t thread = at::RecordFunction::currentThreadId();
  const auto operations = operations_under(results, [&](const NodePointer& node) {
    return node->thread_id() != thread || node->sequence_nr() < since;
  });
  run->expect(operations);
  for (const size_t number : by_age(operations.nodes)) {
    const Node& operation = *operations.nodes[number];
    edge_list edges;
    for (const auto& edge : operation.next_edges()) {
      edges.push_back(replaced(edge));
    }
    replacements_[&operation] = {
        make_stand_in<NodePointer>(operation, std::move(edges), run, number), 0};
  }
}

/// An accumulator has only input 0, and a stand-in's inputs are those of its operation.
Edge StandIns::replaced(const Edge& edge) const {
  const auto found = replacements_.find(edge.function.get());
  return found == replacements_.end()
             ? edge
             : Edge(found->second.function, found->second.input_nr + edge.input_nr);
}

at::Tensor StandIns::with_history(const at::Tensor& result) const {
  if (!result.defined() || !result.requires_grad()) {
    return result;
  }
  if (result.is_leaf()) {  // an input as it came, or a parameter
    const auto input = std::ranges::find_if(detached_inputs_,
                                            [&](const at::Tensor& t) { return t.is_same(result); });
    const at::Tensor& own =
        input == detached_inputs_.end() ? result : inputs_[input - detached_inputs_.begin()];
    return own.view_as(own);
  }
  at::Tensor alias = result.detach();
  const auto output = static_cast<uint32_t>(result.output_nr());
  torch::autograd::impl::set_gradient_edge(alias, replaced({result.grad_fn(), output}));
  return alias;
}

}  // namespace fairshard::detail

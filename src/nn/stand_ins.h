#pragma once
// A graph in the place of one that is to be forgotten until backward.

#include "second_run.h"

#include <cstdint>
#include <memory>
#include <unordered_map>

namespace fairshard::detail {

/// Note [Stand-ins]: activation checkpointing wants a graph whose operations keep nothing until
/// backward comes to them. So every operation of the first run has a stand-in, with its edges, its
/// shapes and its turn. When backward comes to the first of them, the function runs again and makes
/// the operations anew; each stand-in then passes its gradients on to its own operation and lets it
/// go. To the engine this is one graph like any other: the gradient of a parameter leaves as soon
/// as it is computed, is added to others as in a plain call, and meets all hooks. A backward inside
/// of backward would hold the gradients of all parameters until its end, or, if it accumulated them
/// itself, run the end-of-backward callbacks of a reducer while gradients are still to come.
class StandIns {
 public:
  /// For the graph from `results` down to what is older than `since`, an autograd sequence number
  /// of this thread, or to `detached_inputs`, which stand for `inputs`.
  StandIns(const std::shared_ptr<SecondRun>& run, const TensorVector& results, uint64_t since,
           const TensorVector& detached_inputs, const TensorVector& inputs);

  /// A result of the first run, with a stand-in as its history.
  at::Tensor with_history(const at::Tensor& result) const;

 private:
  torch::autograd::Edge replaced(const torch::autograd::Edge& edge) const;

  const TensorVector& detached_inputs_;
  const TensorVector& inputs_;
  /// Where gradients go instead, by the node to which they went.
  std::unordered_map<const torch::autograd::Node*, torch::autograd::Edge> replacements_;
};

}  // namespace fairshard::detail

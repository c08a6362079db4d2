#pragma once
// A function that ran once in forward and runs again in backward, for its graph.

#include "../amp/autocast_state.h"
#include "../parts/rng_state.h"

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <functional>
#include <mutex>
#include <optional>
#include <typeindex>
#include <vector>

namespace fairshard::detail {

using TensorVector = std::vector<at::Tensor>;
/// A shared_ptr, and from torch 2.15 on an intrusive_ptr.
using NodePointer = decltype(torch::autograd::Edge::function);

/// The same values, without their history.
TensorVector detached(const TensorVector& tensors);

/// The operations of one run of a function: all that is new in the graph of its results.
struct Operations {
  /// In the order in which they are met from the results, which is that of any such graph.
  std::vector<NodePointer> nodes;
  /// What the function used and did not make, but for leaves.
  std::vector<NodePointer> ends;
  /// Parameters, and whatever else is a leaf.
  TensorVector leaves;
};

/// Walks from `results` down to leaves, and as far as `is_end` allows.
Operations operations_under(const TensorVector& results,
                            const std::function<bool(const NodePointer&)>& is_end);

/// Everything that a second run needs to be as the first. Made before the first.
class SecondRun {
 public:
  using Run = std::function<TensorVector(const TensorVector&)>;

  SecondRun(Run run, const TensorVector& inputs);

  /// The first run.
  TensorVector run_first(const TensorVector& detached_inputs) { return run_(detached_inputs); }
  /// To be called when the operations of the first run are known, which they are to be like.
  void expect(const Operations& first);

  /// Operation `number` of the run that belongs to the backward under way. The first call of a
  /// backward runs the function; each operation can be taken once.
  NodePointer take(size_t number);

 private:
  struct Expected {
    std::type_index type;
    size_t edges;
  };
  /// What the first run has seen of a leaf. Without the leaf: its memory may go before backward.
  struct Seen {
    c10::VariableVersion counter;
    uint32_t version;
    std::vector<int64_t> sizes;
  };

  void run_again();
  void check_leaves() const;
  void check(const std::vector<NodePointer>& nodes) const;

  std::mutex mutex_;
  Run run_;
  RngState rng_;
  AutocastState autocast_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  std::vector<Expected> expected_;
  std::vector<NodePointer> ends_;
  std::vector<Seen> leaves_;
  /// Of the backward that the operations belong to.
  std::optional<int> backward_;
  std::vector<NodePointer> operations_;
};

}  // namespace fairshard::detail

#pragma once
// The loop around an inner optimizer: what it is asked for, and what it is told, whichever language
// it is written in.

#include <fairshard/outer/synchroniser.h>

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace fairshard::outer {

/// What a SlowMoDistributedDataParallel is made with.
struct SlowMoOptions {
  // Behaviour
  /// What happens between nodes, and when.
  TORCH_ARG(OuterOptions, outer);
  /// Take the slow momentum that is suggested for the number of nodes.
  TORCH_ARG(bool, auto_momentum) = false;
  /// Before a forward in training a node's ranks take the buffers of its first rank, and with every
  /// exact average nodes take their average.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// Whether a slow step zeroes SGD's momentum; if not given, that of slow momentum does and
  /// Nesterov's does not.
  TORCH_ARG(std::optional<bool>, zero_inner_momentum);
  /// Whether a slow step makes Adam's averages and step count start anew.
  TORCH_ARG(bool, zero_adam) = false;

  // Performance
  /// How much of the gradients travels together inside a node.
  TORCH_ARG(int64_t, bucket_bytes) = 25 << 20;
  /// The dtype in which gradients travel inside a node.
  TORCH_ARG(std::optional<at::ScalarType>, reduce_dtype);
};

/// What an inner optimizer supplies.
struct InnerOptimizer {
  /// Of each parameter group: the learning rate, and its tensors. For an OSS this rank's slices.
  std::vector<std::pair<double, std::vector<at::Tensor>>> groups;
  /// Zeroes fields of the state of a tensor, by Python's names ("momentum_buffer"), if it has them.
  std::function<void(const at::Tensor& tensor, const std::vector<std::string>& fields)> zero;
};

class ShardedNode;

/// A Synchroniser between the steps of an inner optimizer. Construction and step() are collective
/// over all nodes' ranks.
class SlowLoop {
 public:
  /// Takes rank 0's parameters and buffers to all. Where the parameters belong to a ShardedStep
  /// over the ranks of a node (an OSS), outer buffers follow its slices; over other ranks it is
  /// refused.
  SlowLoop(comm::Group world, const Nodes& nodes, const std::vector<shard::Parameter>& parameters,
           const std::vector<at::Tensor>& buffers, const SlowMoOptions& options = {});
  ~SlowLoop();
  SlowLoop(const SlowLoop&) = delete;
  SlowLoop& operator=(const SlowLoop&) = delete;

  /// What to tell the user on this rank about the options; empty if nothing.
  const std::string& advice() const { return advice_; }
  const std::shared_ptr<Synchroniser>& synchroniser() const { return synchroniser_; }
  /// Whether the ranks of a node partition the parameters.
  bool is_sharded() const { return sharded_ != nullptr; }

  /// Whether set_parameters() is to be called before a forward: the module has so many now.
  bool is_behind(size_t parameters) const;
  /// Has parameters that are new since start as rank 0 has them, as everything did. `parameters`
  /// are all that there are. Collective if there are new ones.
  void set_parameters(const std::vector<shard::Parameter>& parameters);
  /// To be called before each forward in training. What to tell the user, who may have forgotten
  /// step(); empty if nothing. Local.
  std::string count_forward();
  /// To be called after each inner step: learning rates are looked up, nodes synchronised where it
  /// is due, and inner states zeroed. `masters`, if given, are full-precision values of all
  /// parameters, which the optimizer has instead; `buffers` all of the module's. Blocks while nodes
  /// synchronise.
  StepResult step(const InnerOptimizer& optimizer, const std::vector<at::Tensor>& masters,
                  const std::vector<at::Tensor>& buffers);
  /// See Synchroniser::average().
  void average(const std::vector<at::Tensor>& masters);

 private:
  void share_from_first(const std::vector<at::Tensor>& parameters) const;
  std::vector<double> learning_rates(const InnerOptimizer& optimizer,
                                     const std::vector<at::Tensor>& tensors) const;
  std::vector<std::string> zeroed_fields() const;

  comm::Group world_;
  SlowMoOptions options_;
  std::string advice_;
  std::unique_ptr<ShardedNode> sharded_;
  std::shared_ptr<Synchroniser> synchroniser_;
  /// All that the module had when it was last looked at.
  std::unordered_set<const c10::TensorImpl*> known_;
  size_t parameters_seen_ = 0;
  int forwards_since_ = 0;
  bool has_warned_ = false;
};

}  // namespace fairshard::outer

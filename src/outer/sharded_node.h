#pragma once
// Nodes whose ranks partition the parameters.

#include <fairshard/outer/synchroniser.h>
#include <fairshard/shard/sharded_step.h>

#include <memory>
#include <unordered_map>
#include <vector>

namespace fairshard::outer {

/// What a node's ranks own by a ShardedStep over them. Between nodes each rank synchronises its own
/// slices, and what that has changed is gathered within the node.
///
/// Outer buffers are those of slices, so the layout is frozen when it is made, and not learnt from
/// the first backward.
class ShardedNode {
 public:
  /// For parameters that belong to a ShardedStep, else null. Throws if it partitions them across
  /// other ranks than those of the node. Collective over the node.
  static std::unique_ptr<ShardedNode> find(const comm::Group& world, const Nodes& nodes,
                                           const std::vector<shard::Parameter>& parameters,
                                           int fragments);

  /// Its ranks, as the optimizer has them.
  const comm::Group& group() const { return group_; }
  /// Whether the optimizer has got more parameters since take_slices().
  bool has_grown() const;
  /// This rank's slices of the parameters that were not taken yet. Takes up what was written to
  /// parameters before. Collective over the node where parameters are resharded.
  std::vector<NodeSlice> take_slices();
  /// Returns when all values are in place. Collective over the node where parameters are resharded.
  void wait_for_values() const;
  /// Gathers what may have changed within the node. Collective over it.
  void publish(const std::vector<int>& fragments) const;
  /// All of it.
  void publish() const;

 private:
  ShardedNode(const std::shared_ptr<shard::ShardedStep>& step,
              const std::vector<shard::Parameter>& parameters, int fragments);

  std::shared_ptr<shard::ShardedStep> step() const;
  int64_t fragment_of(const at::Tensor& parameter) const;

  /// Weak, as a model does not keep its optimizer alive.
  std::weak_ptr<shard::ShardedStep> step_;
  comm::Group group_;
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
  std::unordered_map<const c10::TensorImpl*, int64_t> fragments_;
  size_t taken_ = 0;
};

}  // namespace fairshard::outer

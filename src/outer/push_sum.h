#pragma once
// Gossip by push-sum: nodes give half of what they have to one other node at a time.

#include <fairshard/comm/collectives.h>
#include <fairshard/outer/options.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace fairshard::outer {

/// Every node has numerators x and a weight w, and computes with z = x / w. Halves of both travel
/// together, so sums over nodes (and messages under way) are conserved, and all z come to agree.
///
/// Note [Excess]: parameters hold z, so that an inner step moves z by some d where the algorithm
/// moves x by it. We keep e = x - z of before the step; then x + d = (z + d) + e. Where w is 1, e
/// is zero and not kept.
class PushSum {
 public:
  PushSum(comm::Group inter_node, GossipGraph graph, bool is_overlapped);

  /// Mixes once; `values` are this rank's ranges of z after an inner step, and become those after
  /// mixing. Collective over `inter_node`; when overlapped, waits only for the last mixing's
  /// messages.
  void mix(const std::vector<at::Tensor>& values);
  /// Takes in what is under way and makes `values` numerators; weights become 1. The average of the
  /// numerators over nodes, to be taken next, is the exact one.
  void flush(const std::vector<at::Tensor>& values);
  /// Says that z has been replaced by `values`; the weight stays.
  void replace(const std::vector<at::Tensor>& values);

  double weight() const { return weight_; }
  /// The weight that is under way to this node. Blocks until it is here.
  double arriving_weight();

  // For checkpoints. `incoming` is empty if nothing is under way.
  int64_t mixes = 0;
  const std::vector<at::Tensor>& excess() const { return excess_; }
  const std::vector<at::Tensor>& arrived();
  void load(double weight, std::vector<at::Tensor> excess, double arriving_weight,
            std::vector<at::Tensor> incoming);

 private:
  void send(const std::vector<at::Tensor>& halves);
  void receive(const std::vector<at::Tensor>& numerators);
  void wait();
  void add_excess(const std::vector<at::Tensor>& values);

  comm::Group inter_node_;
  std::vector<int> distances_;
  bool is_overlapped_;
  double weight_ = 1;
  std::vector<at::Tensor> excess_;

  std::vector<at::Tensor> outgoing_;
  std::vector<at::Tensor> incoming_;
  at::Tensor outgoing_weight_;
  at::Tensor incoming_weight_;
  std::vector<comm::Work> works_;
};

}  // namespace fairshard::outer

#pragma once
// outer/ lets nodes train apart and brings them together now and then. Nodes says which ranks are
// one node; Synchroniser does what happens between nodes, with an outer optimizer of one's choice.

#include <fairshard/comm/mesh.h>

namespace fairshard::outer {

/// The ranks of a run as nodes of equal size: rank r is on node r / ranks_per_node. What goes
/// between nodes is divided among the ranks of a node: each exchanges its own range of every buffer
/// with the ranks that have its place on other nodes. So nothing crosses twice.
class Nodes {
 public:
  /// Collective over `world`; blocks until the groups are made.
  Nodes(const comm::Group& world, int ranks_per_node);

  /// With groups that were made elsewhere: the ranks of this node, and the ranks that have this
  /// rank's place on each node, both in ascending order. Local.
  Nodes(comm::Group intra_node, comm::Group inter_node);

  /// The ranks of this node.
  const comm::Group& intra_node() const { return intra_node_; }
  /// The ranks that have this rank's place on each node.
  const comm::Group& inter_node() const { return inter_node_; }

  int count() const { return inter_node_.size(); }
  int number() const { return inter_node_.rank(); }

 private:
  explicit Nodes(const comm::Mesh& mesh);

  comm::Group intra_node_;
  comm::Group inter_node_;
};

}  // namespace fairshard::outer

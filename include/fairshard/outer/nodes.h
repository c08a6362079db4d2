#pragma once
// outer/ lets nodes train apart and brings them together now and then. Nodes says which ranks are
// one node; Synchroniser does what happens between nodes, with an outer optimizer of one's choice.

#include <fairshard/comm/group.h>

namespace fairshard::outer {

/// The ranks of a run as nodes of equal size: rank r is on node r / ranks_per_node. What goes
/// between nodes is divided among the ranks of a node: each speaks with those ranks of other nodes
/// that have its place there, about its own range of every buffer. So nothing crosses twice.
class Nodes {
 public:
  /// Collective over `world`; blocks until the groups are made.
  Nodes(const comm::Group& world, int ranks_per_node);

  /// With groups that were made elsewhere: the ranks of this node, and the ranks that have this
  /// rank's place on each node, both in ascending order. Local.
  Nodes(comm::Group inside, comm::Group between);

  const comm::Group& inside() const { return inside_; }
  const comm::Group& between() const { return between_; }

  int count() const { return between_.size(); }
  int number() const { return between_.rank(); }

 private:
  comm::Group inside_;
  comm::Group between_;
};

/// Throws c10::ValueError unless so many ranks make whole nodes.
void check_ranks_per_node(int ranks, int ranks_per_node);

}  // namespace fairshard::outer

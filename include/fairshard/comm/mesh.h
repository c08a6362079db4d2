#pragma once
// Ranks in two dimensions: some partition things among themselves, others have the same part.

#include <fairshard/comm/group.h>

#include <optional>

namespace fairshard::comm {

/// The ranks of a run, of which those of one shard group partition parameters among themselves, and
/// those of one replica group have the same part. Where a shard group is a node, little travels
/// between nodes. A Group alone is a mesh in which all ranks shard, and nothing is replicated.
class Mesh {
 public:
  /// All ranks shard. Implicit, so that a Group can be given wherever a Mesh is taken. Local.
  Mesh(Group all);  // NOLINT(google-explicit-constructor)

  /// Rank r is in shard group r / ranks_per_shard_group, as ranks of a node follow each other.
  /// Collective over `all`; blocks until the groups are made.
  Mesh(const Group& all, int ranks_per_shard_group);

  /// With groups that were made elsewhere: all ranks, those that shard with this one, and those
  /// that have its place in the other shard groups. Local.
  Mesh(Group all, Group shards, Group replicas);

  /// All ranks of the run.
  const Group& all() const { return all_; }
  /// The ranks among which parameters are partitioned; usually those of a node.
  const Group& shards() const { return shards_; }
  /// The ranks that have the same part; usually one of each node. Only where has_replicas().
  const Group& replicas() const;
  /// Whether any other rank has the same part.
  bool has_replicas() const { return replicas_ && replicas_->size() > 1; }
  /// The number of this rank's shard group.
  int replica() const { return replicas_ ? replicas_->rank() : 0; }

 private:
  Group all_;
  Group shards_;
  std::optional<Group> replicas_;
};

/// Throws c10::ValueError unless so many ranks make whole nodes.
void check_ranks_per_node(int ranks, int ranks_per_node);

}  // namespace fairshard::comm

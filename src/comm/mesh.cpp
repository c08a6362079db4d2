#include <fairshard/comm/mesh.h>

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

namespace fairshard::comm {
namespace {

/// Partitions all ranks into `count` groups, and returns this rank's own. Rank r is in group
/// r / block % count.
Group own_of(const Group& all, int count, int block) {
  std::vector<Group> own;
  for (int number = 0; number < count; ++number) {
    std::vector<int> ranks;
    for (int rank = 0; rank < all.size(); ++rank) {
      if (rank / block % count == number) {
        ranks.push_back(rank);
      }
    }
    Group group = all.subgroup(ranks);
    if (group.rank() >= 0) {
      own.push_back(std::move(group));
    }
  }
  return own.front();
}

}  // namespace

void check_ranks_per_node(int ranks, int ranks_per_node) {
  TORCH_CHECK_VALUE(ranks_per_node >= 1, "the number of ranks per node is ", ranks_per_node,
                    ", but must be at least 1");
  TORCH_CHECK_VALUE(ranks % ranks_per_node == 0, ranks, " ranks do not make whole nodes of ",
                    ranks_per_node, " ranks each");
}

const Group& Mesh::replicas() const {
  if (!replicas_) {
    C10_THROW_ERROR(ValueError, "the mesh has no replicas");
  }
  return *replicas_;
}

Mesh::Mesh(Group all) : all_(std::move(all)), shards_(all_) {}

Mesh::Mesh(const Group& all, int ranks_per_shard_group)
    : all_(all),
      shards_((check_ranks_per_node(all.size(), ranks_per_shard_group),
               own_of(all, all.size() / ranks_per_shard_group, ranks_per_shard_group))),
      replicas_(own_of(all, ranks_per_shard_group, 1)) {}

Mesh::Mesh(Group all, Group shards, Group replicas)
    : all_(std::move(all)), shards_(std::move(shards)), replicas_(std::move(replicas)) {
  TORCH_CHECK_VALUE(all_.rank() >= 0 && shards_.rank() >= 0 && replicas_->rank() >= 0,
                    "this rank is not in all groups of the mesh that were given");
  TORCH_CHECK_VALUE(shards_.size() * replicas_->size() == all_.size(), "a mesh of ",
                    replicas_->size(), " x ", shards_.size(), " has ",
                    shards_.size() * replicas_->size(), " ranks, but the group of all has ",
                    all_.size());
}

}  // namespace fairshard::comm

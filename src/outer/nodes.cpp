#include <fairshard/outer/nodes.h>

#include <c10/util/Exception.h>

#include <utility>
#include <vector>

namespace fairshard::outer {
namespace {

/// Partitions all ranks into `count` groups, and returns this rank's own. Rank r is in group
/// r / block % count.
comm::Group own_of(const comm::Group& world, int count, int block) {
  std::vector<comm::Group> own;
  for (int number = 0; number < count; ++number) {
    std::vector<int> ranks;
    for (int rank = 0; rank < world.size(); ++rank) {
      if (rank / block % count == number) {
        ranks.push_back(rank);
      }
    }
    comm::Group group = world.subgroup(ranks);
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

Nodes::Nodes(const comm::Group& world, int ranks_per_node)
    : intra_node_((check_ranks_per_node(world.size(), ranks_per_node),
                   own_of(world, world.size() / ranks_per_node, ranks_per_node))),
      inter_node_(own_of(world, ranks_per_node, 1)) {}

Nodes::Nodes(comm::Group intra_node, comm::Group inter_node)
    : intra_node_(std::move(intra_node)), inter_node_(std::move(inter_node)) {
  TORCH_CHECK_VALUE(intra_node_.rank() >= 0 && inter_node_.rank() >= 0,
                    "this rank is not in the groups of its node that were given");
}

}  // namespace fairshard::outer

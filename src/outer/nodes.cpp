#include <fairshard/outer/nodes.h>

#include <c10/util/Exception.h>

#include <utility>

namespace fairshard::outer {

Nodes::Nodes(const comm::Group& world, int ranks_per_node)
    : Nodes(comm::Mesh(world, ranks_per_node)) {}

Nodes::Nodes(const comm::Mesh& mesh) : Nodes(mesh.shards(), mesh.replicas()) {}

Nodes::Nodes(comm::Group intra_node, comm::Group inter_node)
    : intra_node_(std::move(intra_node)), inter_node_(std::move(inter_node)) {
  TORCH_CHECK_VALUE(intra_node_.rank() >= 0 && inter_node_.rank() >= 0,
                    "this rank is not in the groups of its node that were given");
}

}  // namespace fairshard::outer

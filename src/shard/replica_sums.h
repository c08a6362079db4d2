#pragma once
// Shards of gradients are summed among the ranks that shard, and then among replicas of them.

#include <fairshard/comm/collectives.h>
#include <fairshard/comm/mesh.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace fairshard::shard {

/// The second sums of one backward, of a mesh that has replicas.
///
/// Note [Sums between replicas]: a shard may travel to replicas when it has been summed among those
/// who shard. That is seen when the next gradient comes, or when somebody needs it, so its time
/// differs from rank to rank; but all ranks start these sums in the order of their buckets, over a
/// group that nothing else uses, so that they never meet different ones there.
class ReplicaSums {
 public:
  using Wait = std::function<void(comm::Work&)>;

  /// One of them. `shard` has the result when its sum has been waited for.
  struct Sum {
    comm::Work among_shards;
    at::Tensor shard;
    at::ScalarType wire_dtype;
    comm::ReduceOp op;
    std::string label;
    bool is_started = false;
    /// What travels, if it has another dtype.
    // Said for aggregates that leave them out, of which the compiler warns.
    at::Tensor wire = {};            // NOLINT(readability-redundant-member-init)
    comm::Work among_replicas = {};  // NOLINT(readability-redundant-member-init)
  };

  explicit ReplicaSums(comm::Mesh mesh) : mesh_(std::move(mesh)) {}

  /// Takes a shard that is on its way. Local.
  std::shared_ptr<Sum> add(Sum sum);
  /// Starts those whose turn it is. Collective; does not block.
  void advance();
  /// Returns when a sum is complete. Collective.
  void wait_for(Sum& sum, const Wait& wait);
  /// Starts all that a backward which was broken off has left, as other ranks have or will.
  /// Collective; blocks until they are started.
  void start_rest();

 private:
  void start_next();

  comm::Mesh mesh_;
  /// Not started yet, in their order.
  std::deque<std::shared_ptr<Sum>> waiting_;
};

}  // namespace fairshard::shard

#pragma once
// How gradients are reduced, and those of which groups.

#include <fairshard/shard/flat_group.h>
#include <fairshard/shard/sharded_step.h>

#include <functional>
#include <memory>
#include <optional>

namespace c10d {
class CommHookInterface;
}  // namespace c10d

namespace fairshard::shard {

/// Which gradients a rank gets.
enum class GradientMode {
  /// Every rank gets the average of all gradients, in .grad, as in plain data parallelism.
  kReplicated,
  /// Every rank gets the average of what it owns, in its gradient shards; .grad is dropped as soon
  /// as it has been copied to its bucket.
  kSharded,
};

/// What a GradReducer is made with.
struct ReducerOptions {
  // Behaviour
  /// Which gradients a rank gets.
  TORCH_ARG(GradientMode, mode) = GradientMode::kSharded;
  /// In the replicated mode: what averages a bucket instead of an all-reduce. As in torch's DDP, it
  /// gets each rank's own gradients, undivided.
  TORCH_ARG(std::shared_ptr<c10d::CommHookInterface>, comm_hook);

  // Performance
  /// The promise that every backward that is reduced uses the same parameters on this rank: then
  /// ranks agree in the first one alone on which these are. The same on all ranks.
  TORCH_ARG(bool, static_graph) = false;
  /// How many buckets may be under way at once in the sharded mode. Each needs its own memory.
  TORCH_ARG(int, buckets_in_flight) = 2;
  /// The dtype in which gradients travel, if not their own. Sums are taken in float32 over Gloo.
  TORCH_ARG(std::optional<at::ScalarType>, wire_dtype);
  /// Called on autograd's thread when all is reduced, except within join().
  TORCH_ARG(std::function<void()>, after_reduction);
};

/// A flat group, and what steps it. The same order on all ranks.
struct ReducedGroup {
  std::shared_ptr<FlatGroup> group;
  std::weak_ptr<ShardedStep> step;
};

}  // namespace fairshard::shard

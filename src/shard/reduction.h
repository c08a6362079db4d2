#pragma once
// What happens to the gradients of a bucket: an interface with an implementation per mode.

#include "packing.h"
#include "replica_sums.h"
#include "used_parameters.h"
#include <fairshard/comm/collectives.h>
#include <fairshard/shard/flat_group.h>
#include <fairshard/shard/reducer_options.h>

#include <memory>
#include <string>
#include <vector>

namespace fairshard::shard {

/// What all reductions of one backward share.
struct BackwardContext {
  comm::Mesh mesh;
  std::vector<std::shared_ptr<FlatGroup>> groups;
  ReducerOptions options;
  UsedParameters used;
  ReplicaSums replica_sums;
  /// How many buckets are reduced.
  size_t active_buckets = 0;
  /// The grad scaler of the loss, or 0.
  int64_t scaler = 0;

  /// Waits for a collective of this backward. See Note [Resharding]: ranks that have not come here
  /// may need what this one has not begun to unshard.
  void wait(comm::Work& work) const;
};

/// A bucket in a backward: which of its gradients have come, and where they lie.
struct PendingBucket {
  /// Of the context's groups, and of that one's buckets.
  size_t group = 0;
  size_t bucket = 0;
  std::vector<bool> is_taken;
  size_t missing = 0;
  /// A bucket of frozen parameters is left out, on all ranks alike.
  bool is_active = false;
  /// Its place among those that are not.
  size_t number = 0;
  /// Where gradients are collected, from the first one on until they are reduced.
  at::Tensor flat;
  /// Unless gradients are put into the bucket one by one.
  Packing packing;

  FlatGroup& group_of(const BackwardContext& context) const { return *context.groups[group]; }
  const FlatBucket& values(const BackwardContext& context) const {
    return group_of(context).bucket(bucket);
  }
  const Bucket& layout(const BackwardContext& context) const { return values(context).layout(); }
  std::vector<ParameterId> parameters(const BackwardContext& context) const;
  /// The dtype in which the gradients travel.
  at::ScalarType wire_dtype(const BackwardContext& context) const;
  /// On a CPU gradients are divided on their way into the bucket, which costs nothing more than the
  /// copy and gives the bits of torch's DDP. In low precision the sum, which is a wide one, is
  /// divided. On a device the collective divides, as NCCL does it: on the way out of the bucket.
  /// A communication hook gets them undivided.
  bool averages_in_collective(const BackwardContext& context) const;
  comm::ReduceOp reduce_op(const BackwardContext& context) const {
    return averages_in_collective(context) ? comm::ReduceOp::kAvg : comm::ReduceOp::kSum;
  }
  /// Whether gradients are copied together, when the last has come.
  bool is_packed(const BackwardContext& context) const {
    return Packing::is_for(values(context).flat());
  }
  /// For messages.
  std::string label(const BackwardContext& context) const;
};

/// A mode. All buckets of a flat group have one. Starts are in one order on all ranks.
class Reduction {
 public:
  explicit Reduction(BackwardContext& context) : context_(context) {}
  virtual ~Reduction() = default;
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  /// Called for each of its flat groups.
  virtual void begin_backward(FlatGroup& group) = 0;
  /// Gives a bucket memory to collect gradients in.
  virtual void allocate(PendingBucket& bucket) = 0;
  /// Whether .grad becomes the gradient's place in the bucket, or nothing.
  virtual bool keeps_gradients() const = 0;
  /// All gradients of this rank are in the bucket. Collective; does not block.
  virtual void start(PendingBucket& bucket) = 0;
  /// All buckets were started: waits for what is left. Collective.
  virtual void finish() = 0;
  /// Whether ranks agree on the used parameters of all buckets together, before publish().
  virtual bool agrees_at_end() const { return true; }
  /// All buckets have arrived, and ranks agree on the used parameters.
  virtual void publish(PendingBucket& bucket) = 0;
  /// Forgets the backward, which has ended or was broken off.
  virtual void reset() = 0;

 protected:
  const BackwardContext& context() const { return context_; }
  BackwardContext& context() { return context_; }

 private:
  BackwardContext& context_;
};

}  // namespace fairshard::shard

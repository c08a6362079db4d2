#pragma once
// Every rank gets the averaged gradients of what it owns.

#include "bucket_pool.h"
#include "reduction.h"

#include <deque>
#include <memory>

namespace fairshard::shard {

/// A bucket on its way to its owners.
struct ShardArrival {
  PendingBucket* bucket = nullptr;
  at::Tensor flat;
  /// What arrives, if it is to be added to gradients of earlier backwards.
  at::Tensor addend;
  std::shared_ptr<ReplicaSums::Sum> sum;
};

/// Starts to reduce a bucket into this rank's gradient shard. Collective.
ShardArrival start_reduce_scatter(BackwardContext& context, PendingBucket& bucket);
/// Returns when it has arrived, summed over all ranks.
void wait_for(BackwardContext& context, ShardArrival& arrival);
/// Of a backward that was broken off: leaves the collective the memory that it still writes to.
void forget(const BackwardContext& context, const ShardArrival& arrival);

/// Reduce-scatters. A few buckets are under way, and their memory is used again for the next.
class ShardReduction : public Reduction {
 public:
  using Reduction::Reduction;

  void begin_backward(FlatGroup& group) override { group.gradients().begin_backward(); }
  void allocate(PendingBucket& bucket) override;
  bool keeps_gradients() const override { return false; }
  void start(PendingBucket& bucket) override;
  void finish() override;
  void publish(PendingBucket& bucket) override;
  void reset() override {
    for (const ShardArrival& arrival : started_) {
      forget(context(), arrival);
    }
    started_.clear();
  }

 private:
  void finish_oldest();

  std::deque<ShardArrival> started_;
  BucketPool pool_;
};

/// How many buckets of a group may be under way. Resharding is for the least memory.
size_t buckets_in_flight(const BackwardContext& context, const PendingBucket& bucket);

}  // namespace fairshard::shard

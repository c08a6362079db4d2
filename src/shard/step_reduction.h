#pragma once
// Every bucket is stepped as soon as its gradients are reduced.

#include "bucket_pool.h"
#include "shard_reduction.h"

#include <deque>
#include <memory>
#include <utility>

namespace fairshard::shard {

/// See Note [Steps in backward] in grad_reducer.h.
class StepReduction : public Reduction {
 public:
  StepReduction(BackwardContext& context, std::weak_ptr<ShardedStep> step)
      : Reduction(context), step_(std::move(step)) {}

  void begin_backward(FlatGroup& group) override;
  void allocate(PendingBucket& bucket) override;
  bool keeps_gradients() const override { return false; }
  void start(PendingBucket& bucket) override;
  void finish() override;
  bool agrees_at_end() const override { return false; }
  void publish(PendingBucket& bucket) override;
  void reset() override;

 private:
  struct Started {
    ShardArrival arrival;
    UsedParameters::Agreement agreement;
  };

  bool can_reduce_within(const PendingBucket& bucket) const;
  void step_oldest();

  std::shared_ptr<ShardedStep> step() const;

  std::weak_ptr<ShardedStep> step_;
  std::deque<Started> started_;
  BucketPool pool_;
};

}  // namespace fairshard::shard

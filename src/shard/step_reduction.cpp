#include "step_reduction.h"

#include <c10/util/Exception.h>

#include <utility>

namespace fairshard::shard {

std::shared_ptr<ShardedStep> StepReduction::step() const {
  auto step = step_.lock();
  TORCH_CHECK(step, "step_in_backward: the OSS of these parameters is gone");
  return step;
}

void StepReduction::begin_backward(FlatGroup& group) {
  step()->check_can_run_in_backward();
  TORCH_CHECK(context().scaler == 0,
              "step_in_backward cannot be used with a grad scaler, which finds out after backward "
              "whether there is a step");
  group.gradients().begin_backward();
  if (!group.schedule()) {  // else values are sharded; they were followed before the forward
    group.update_masters();
  }
}

void StepReduction::allocate(PendingBucket& bucket) {
  const at::Tensor& values = bucket.values(context()).flat();
  bucket.flat = pool_.take(values.numel(), bucket.wire_dtype(context()), values);
}

/// A bucket's memory has this rank's range of the reduced gradients until they are stepped, if
/// nothing needs to be added or cast.
bool StepReduction::can_reduce_within(const PendingBucket& bucket) const {
  const FlatBucket& values = bucket.values(context());
  return !bucket.group_of(context()).gradients().has(bucket.bucket) && !values.has_master() &&
         bucket.flat.scalar_type() == values.flat().scalar_type();
}

void StepReduction::start(PendingBucket& bucket) {
  while (started_.size() >= buckets_in_flight(context(), bucket)) {
    step_oldest();
  }
  if (can_reduce_within(bucket)) {
    bucket.group_of(context()).gradients().reduce_into(
        bucket.bucket, bucket.values(context()).shard_of(bucket.flat));
  }
  auto arrival = start_reduce_scatter(context(), bucket);
  started_.push_back({std::move(arrival), context().used.start_agreement(
                                              context().mesh.all(), bucket.parameters(context()),
                                              "used parameters of " + bucket.label(context()))});
}

void StepReduction::step_oldest() {
  Started oldest = std::move(started_.front());
  started_.pop_front();
  wait_for(context(), oldest.arrival);
  context().used.take(std::move(oldest.agreement),
                      [this](comm::Work& work) { context().wait(work); });
  const PendingBucket& bucket = *oldest.arrival.bucket;
  FlatGroup& group = bucket.group_of(context());
  group.gradients().publish(bucket.bucket, context().used.of(bucket.group));
  step()->run_bucket(group, bucket.bucket);
  pool_.give_back(oldest.arrival.flat);
}

void StepReduction::finish() {
  while (!started_.empty()) {
    step_oldest();
  }
}

/// The handles in .grad say that gradients were stepped and dropped.
void StepReduction::publish(PendingBucket& bucket) {
  bucket.group_of(context()).gradients().expose(bucket.bucket);
}

void StepReduction::reset() {
  for (const Started& started : started_) {
    forget(context(), started.arrival);
  }
  started_.clear();
  pool_.clear();  // the next forward needs the memory
}

}  // namespace fairshard::shard

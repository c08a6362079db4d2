#include "shard_reduction.h"

#include "flat_memory.h"

#include <utility>

namespace fairshard::shard {
namespace {

/// Pooled memory has old numbers between the parameters, and a range must have no stray infinities.
void clear_padding(const Bucket& layout, const at::Tensor& flat) {
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const int64_t end = layout.slots[i].offset + layout.slots[i].numel;
    const int64_t next = i + 1 < layout.slots.size() ? layout.slots[i + 1].offset : layout.length();
    if (end < next) {
      flat.narrow(0, end, next - end).zero_();
    }
  }
}

}  // namespace

size_t buckets_in_flight(const BackwardContext& context, const PendingBucket& bucket) {
  return bucket.group_of(context).schedule()
             ? 1
             : static_cast<size_t>(context.options.buckets_in_flight());
}

ShardArrival start_reduce_scatter(BackwardContext& context, PendingBucket& bucket) {
  clear_padding(bucket.layout(context), bucket.flat);
  GradientShards& gradients = bucket.group_of(context).gradients();
  const at::Tensor own = gradients.range(bucket.bucket);
  const at::Tensor addend =
      gradients.has(bucket.bucket) ? empty_flat(own.numel(), own.options()) : at::Tensor();
  const at::Tensor& target = addend.defined() ? addend : own;
  const comm::ReduceOp op = bucket.reduce_op(context);
  const std::string label = bucket.label(context);
  auto work = comm::reduce_scatter(context.mesh.shards(), target, bucket.flat, op, label,
                                   bucket.layout(context).bounds);
  auto sum = context.replica_sums.add({.among_shards = std::move(work),
                                       .shard = target,
                                       .wire_dtype = bucket.flat.scalar_type(),
                                       .op = op,
                                       .label = label});
  return {&bucket, std::exchange(bucket.flat, at::Tensor()), addend, std::move(sum)};
}

void wait_for(BackwardContext& context, ShardArrival& arrival) {
  context.replica_sums.wait_for(*arrival.sum, [&](comm::Work& work) { context.wait(work); });
  if (arrival.addend.defined()) {
    const PendingBucket& bucket = *arrival.bucket;
    bucket.group_of(context).gradients().range(bucket.bucket).add_(arrival.addend);
  }
}

void forget(const BackwardContext& context, const ShardArrival& arrival) {
  if (!arrival.addend.defined()) {
    arrival.bucket->group_of(context).gradients().drop(arrival.bucket->bucket);
  }
}

void ShardReduction::allocate(PendingBucket& bucket) {
  while (started_.size() >= buckets_in_flight(context(), bucket)) {
    finish_oldest();
  }
  const at::Tensor& values = bucket.values(context()).flat();
  bucket.flat = pool_.take(values.numel(), bucket.wire_dtype(context()), values);
}

void ShardReduction::start(PendingBucket& bucket) {
  started_.push_back(start_reduce_scatter(context(), bucket));
}

void ShardReduction::finish_oldest() {
  ShardArrival arrival = std::move(started_.front());
  started_.pop_front();
  wait_for(context(), arrival);
  pool_.give_back(arrival.flat);
}

void ShardReduction::finish() {
  while (!started_.empty()) {
    finish_oldest();
  }
}

void ShardReduction::publish(PendingBucket& bucket) {
  GradientShards& gradients = bucket.group_of(context()).gradients();
  gradients.publish(bucket.bucket, context().used.of(bucket.group));
  gradients.expose(bucket.bucket);
}

}  // namespace fairshard::shard

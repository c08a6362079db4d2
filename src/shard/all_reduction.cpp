#include "all_reduction.h"

#include <ATen/ops/zeros_like.h>

namespace fairshard::shard {

void AllReduction::begin_backward(FlatGroup& /*group*/) {}

void AllReduction::allocate(PendingBucket& bucket) {
  memory_.resize(std::max(memory_.size(), bucket.group + 1));
  auto& buckets = memory_[bucket.group];
  buckets.resize(std::max(buckets.size(), bucket.bucket + 1));
  at::Tensor& memory = buckets[bucket.bucket];
  const at::Tensor& values = bucket.values(context()).flat();
  if (!memory.defined() || memory.numel() != values.numel() ||
      memory.scalar_type() != values.scalar_type() || memory.device() != values.device()) {
    memory = at::zeros_like(values);
  }
  bucket.flat = memory;
}

void AllReduction::start(PendingBucket& bucket) {
  const auto dtype = bucket.wire_dtype(context());
  const bool is_cast = dtype != bucket.flat.scalar_type();
  const at::Tensor wire = is_cast ? bucket.flat.to(dtype) : bucket.flat;
  auto work = comm::all_reduce(context().mesh.all(), wire, bucket.reduce_op(context()),
                               bucket.label(context()));
  started_.push_back({bucket.flat, is_cast ? wire : at::Tensor(), std::move(work)});
}

void AllReduction::finish() {
  for (; !started_.empty(); started_.pop_front()) {
    auto& [flat, wire, work] = started_.front();
    context().wait(work);
    if (wire.defined()) {
      flat.copy_(wire);
    }
  }
}

void AllReduction::publish(PendingBucket& bucket) {
  const auto& slots = bucket.layout(context()).slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    // A rank without a gradient of its own has that of others.
    const Parameter& parameter = bucket.values(context()).parameter(i);
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined() && context().used.has({bucket.group, slots[i].parameter})) {
      gradient = view_of(parameter, slots[i], bucket.flat);
    }
  }
}

}  // namespace fairshard::shard

#include "all_reduction.h"

#include <ATen/ops/zeros_like.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <utility>

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
  if (context().options.comm_hook()) {
    started_.push_back(run_hook(bucket));
    return;
  }
  const auto dtype = bucket.wire_dtype(context());
  const bool is_cast = dtype != bucket.flat.scalar_type();
  const at::Tensor wire = is_cast ? bucket.flat.to(dtype) : bucket.flat;
  auto work = comm::all_reduce(context().mesh.all(), wire, bucket.reduce_op(context()),
                               bucket.label(context()));
  started_.push_back({bucket.flat, is_cast ? wire : at::Tensor(), std::move(work)});
}

AllReduction::Started AllReduction::run_hook(PendingBucket& bucket) {
  std::vector<size_t> offsets;
  std::vector<size_t> lengths;
  std::vector<c10::IntArrayRef> sizes;
  std::vector<at::Tensor> parameters;
  const auto& slots = bucket.layout(context()).slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    const at::Tensor& parameter = bucket.values(context()).parameter(i).tensor;
    offsets.push_back(static_cast<size_t>(slots[i].offset));
    lengths.push_back(static_cast<size_t>(slots[i].numel));
    sizes.push_back(parameter.sizes());
    parameters.push_back(parameter);
  }
  c10d::GradBucket grad_bucket(bucket.number, context().active_buckets, bucket.flat,
                               std::move(offsets), std::move(lengths), std::move(sizes),
                               std::move(parameters), std::nullopt);
  return {bucket.flat, at::Tensor(), {}, context().options.comm_hook()->runHook(grad_bucket)};
}

void AllReduction::finish() {
  for (; !started_.empty(); started_.pop_front()) {
    auto& [flat, wire, work, promise] = started_.front();
    if (promise) {
      promise->wait();  // on a device it is the stream that waits
      wire = context().options.comm_hook()->parseHookResult(promise->value());
      TORCH_CHECK_VALUE(wire.numel() == flat.numel(), "the communication hook has returned ",
                        wire.numel(), " elements for a bucket of ", flat.numel());
      wire = wire.is_alias_of(flat) ? at::Tensor() : wire.view(flat.sizes());
    }
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

#include "bucket_filler.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fairshard::shard {

BucketFiller::BucketFiller(std::shared_ptr<FlatParameters> parameters,
                           const ReducerOptions& options)
    : parameters_(std::move(parameters)),
      options_(options),
      scale_(at::native::wrapped_scalar_tensor(1.0 / parameters_->group().size())),
      fills_(parameters_->plan().buckets().size()),
      replicated_(fills_.size()) {
  TORCH_CHECK_VALUE(options.buckets_in_flight() >= 1, "buckets_in_flight is ",
                    options.buckets_in_flight(), ", but must be at least 1");
}

void BucketFiller::take(size_t parameter) {
  const at::NoGradGuard no_grad;
  if (is_idle_) {
    begin();
  }
  const size_t bucket = parameters_->plan().bucket_of(parameter);
  const size_t slot = parameters_->plan().slot_of(parameter);
  Fill& fill = fills_[bucket];
  const std::string& name = parameters_->parameters()[parameter].name;
  TORCH_CHECK(
      bucket >= next_, "parameter '", name,
      "' got a gradient after its bucket had been reduced: it was used in a backward inside "
      "of backward, or was unfrozen since the forward");
  TORCH_CHECK(!fill.is_taken[slot], "parameter '", name, "' got two gradients in one backward");
  put(parameter, fill);
  fill.is_taken[slot] = true;
  is_used_[parameter] = true;
  --fill.missing;
  start_ready();
}

void BucketFiller::begin() {
  const auto& buckets = parameters_->plan().buckets();
  if (is_sharded()) {
    parameters_->begin_backward();
  }
  is_used_.assign(parameters_->parameters().size(), false);
  for (size_t b = 0; b < buckets.size(); ++b) {
    const auto& slots = buckets[b].slots;
    fills_[b].flat.reset();
    fills_[b].is_taken.assign(slots.size(), false);
    fills_[b].missing = slots.size();
    // A bucket of frozen parameters is left out, on all ranks alike.
    fills_[b].is_active = std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
      return parameters_->parameters()[slot.parameter].tensor.requires_grad();
    });
  }
  next_ = 0;
  is_idle_ = false;
}

void BucketFiller::reset() {
  started_.clear();
  is_idle_ = true;
}

at::Tensor BucketFiller::make_flat(size_t bucket) {
  const at::Tensor& values = parameters_->bucket(bucket);
  if (!is_sharded()) {
    if (!replicated_[bucket].defined()) {
      replicated_[bucket] = at::zeros_like(values);
    }
    return replicated_[bucket];
  }
  while (static_cast<int>(started_.size()) >= options_.buckets_in_flight()) {
    finish_oldest();
  }
  const auto bytes = static_cast<int64_t>(values.nbytes());
  const auto fits = [&](const at::Tensor& memory) {
    return memory.numel() >= bytes && memory.device() == values.device();
  };
  const auto found = std::find_if(pool_.begin(), pool_.end(), fits);
  at::Tensor memory;
  if (found != pool_.end()) {
    memory = std::move(*found);
    pool_.erase(found);
  } else {
    pool_.clear();  // what is too small now is too small again in the next backward
    memory = at::empty({bytes}, values.options().dtype(at::kByte));
  }
  return memory.narrow(0, 0, bytes).view(values.scalar_type());
}

void BucketFiller::put(size_t parameter, Fill& fill) {
  const Parameter& p = parameters_->parameters()[parameter];
  const at::Tensor gradient = p.tensor.grad();
  TORCH_CHECK_TYPE(gradient.layout() == at::kStrided, "the gradient of parameter '", p.name,
                   "' is ", gradient.layout(), ", but only dense gradients can be reduced");
  TORCH_CHECK(!gradient.requires_grad(), "the gradient of parameter '", p.name,
              "' itself requires a gradient (create_graph), which cannot be reduced");
  if (!fill.flat.defined()) {
    fill.flat = make_flat(parameters_->plan().bucket_of(parameter));
  }
  at::Tensor view = parameters_->view_of(parameter, fill.flat);
  if (is_sharded()) {
    at::mul_out(view, gradient, scale_);
    p.tensor.mutable_grad() = at::Tensor();
  } else if (gradient.const_data_ptr() != view.const_data_ptr()) {
    view.copy_(gradient);
    p.tensor.mutable_grad() = view;
  }
}

void BucketFiller::put_missing(size_t bucket) {
  Fill& fill = fills_[bucket];
  if (!fill.flat.defined()) {
    fill.flat = make_flat(bucket);
  }
  const auto& slots = parameters_->plan().buckets()[bucket].slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    const Parameter& parameter = parameters_->parameters()[slots[i].parameter];
    const at::Tensor& own = parameter.tensor.grad();
    if (fill.is_taken[i]) {
      continue;
    }
    if (own.defined()) {
      // Set by hand, or left by earlier backwards that were not reduced (or, replicated, that
      // were).
      put(slots[i].parameter, fill);
      is_used_[slots[i].parameter] = true;
    } else {
      fill.flat.narrow(0, slots[i].offset, slots[i].numel).zero_();
    }
  }
}

/// Pooled memory has old numbers between the parameters, and a range must have no stray infinities.
void BucketFiller::clear_padding(size_t bucket, const at::Tensor& flat) const {
  const Bucket& layout = parameters_->plan().buckets()[bucket];
  for (size_t i = 0; i < layout.slots.size(); ++i) {
    const int64_t end = layout.slots[i].offset + layout.slots[i].numel;
    const int64_t next = i + 1 < layout.slots.size() ? layout.slots[i + 1].offset : layout.length;
    if (end < next) {
      flat.narrow(0, end, next - end).zero_();
    }
  }
}

void BucketFiller::start_ready() {
  while (next_ < fills_.size() && (!fills_[next_].is_active || fills_[next_].missing == 0)) {
    if (fills_[next_].is_active) {
      start(next_);
    }
    ++next_;
  }
}

void BucketFiller::start(size_t bucket) {
  Fill& fill = fills_[bucket];
  const comm::Group& group = parameters_->group();
  if (!is_sharded()) {
    started_.push_back({bucket,
                        fill.flat,
                        {},
                        comm::all_reduce(group, fill.flat, comm::ReduceOp::kAvg, label(bucket))});
    return;
  }
  clear_padding(bucket, fill.flat);
  const at::Tensor own = parameters_->gradient_range(bucket);
  const at::Tensor range = parameters_->has_gradients(bucket) ? at::empty_like(own) : own;
  auto work = comm::reduce_scatter(group, range, fill.flat, comm::ReduceOp::kSum, label(bucket));
  started_.push_back({bucket, std::exchange(fill.flat, at::Tensor()), range, std::move(work)});
}

void BucketFiller::finish_oldest() {
  Started started = std::move(started_.front());
  started_.pop_front();
  started.work.wait();
  if (!is_sharded()) {
    return;
  }
  const at::Tensor own = parameters_->gradient_range(started.bucket);
  if (!started.range.is_same(own)) {
    own.add_(started.range);
  }
  // All of the memory that flat was cut from.
  pool_.push_back(at::empty({0}, own.options().dtype(at::kByte)).set_(started.flat.storage()));
}

void BucketFiller::finish() {
  const at::NoGradGuard no_grad;
  if (is_idle_) {
    begin();
  }
  try {
    for (; next_ < fills_.size(); ++next_) {
      if (fills_[next_].is_active) {
        put_missing(next_);
        start(next_);
      }
    }
    const std::vector<bool> used = agree_on_used();
    while (!started_.empty()) {
      finish_oldest();
    }
    for (size_t b = 0; b < fills_.size() && is_sharded(); ++b) {
      if (fills_[b].is_active) {
        parameters_->deliver(b, used);
      }
    }
    for (size_t i = 0; i < used.size() && !is_sharded(); ++i) {
      if (used[i]) {
        const size_t bucket = parameters_->plan().bucket_of(i);
        parameters_->parameters()[i].tensor.mutable_grad() =
            parameters_->view_of(i, replicated_[bucket]);
      }
    }
  } catch (...) {
    reset();
    throw;
  }
  reset();
}

std::vector<bool> BucketFiller::agree_on_used() {
  // See Note [Unused parameters] in grad_reducer.h.
  const at::Tensor flags = at::zeros({static_cast<int64_t>(is_used_.size())}, at::kByte);
  auto* bytes = flags.mutable_data_ptr<uint8_t>();
  std::copy(is_used_.begin(), is_used_.end(), bytes);
  comm::all_reduce(parameters_->group(), flags, comm::ReduceOp::kMax, "used parameters").wait();
  return std::vector<bool>(bytes, bytes + is_used_.size());
}

std::string BucketFiller::label(size_t bucket) const {
  const auto& slots = parameters_->plan().buckets()[bucket].slots;
  const auto& names = parameters_->parameters();
  return c10::str("gradients of bucket ", bucket, ": ", names[slots.front().parameter].name,
                  slots.size() > 1 ? " to " + names[slots.back().parameter].name : "");
}

}  // namespace fairshard::shard

#include <fairshard/shard/flat_parameters.h>
#include <fairshard/shard/own_gradients.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

namespace fairshard::shard {

OwnGradients::OwnGradients(const FlatParameters& parameters)
    : parameters_(parameters), has_gradient_(parameters.parameters().size(), false) {
  make_room();
}

void OwnGradients::make_room() {
  const size_t buckets = parameters_.plan().buckets().size();
  ranges_.assign(buckets, at::Tensor());
  is_delivered_.assign(buckets, false);
}

void OwnGradients::begin_backward() {
  if (is_used_) {
    clear();
  }
}

at::Tensor OwnGradients::range(size_t bucket) {
  at::Tensor& range = ranges_[bucket];
  if (!range.defined()) {
    const int64_t length = parameters_.plan().range_length(bucket, parameters_.group().rank());
    range = at::empty({length}, parameters_.stepped_options(bucket));
  }
  return range;
}

void OwnGradients::reduce_within(size_t bucket, const at::Tensor& flat) {
  ranges_[bucket] = parameters_.own_range_of(bucket, flat);
}

void OwnGradients::deliver(size_t bucket, const std::vector<bool>& has_gradient) {
  is_delivered_[bucket] = true;
  for (const Slot& slot : parameters_.plan().buckets()[bucket].slots) {
    has_gradient_[slot.parameter] = has_gradient_[slot.parameter] || has_gradient[slot.parameter];
  }
}

at::Tensor OwnGradients::of(const Slice& slice) const {
  const Piece& piece = slice.piece;
  const auto shaped = [&](const at::Tensor& flat, int64_t offset) {
    return flat
        .as_strided(slice.values.sizes(), slice.values.strides(), flat.storage_offset() + offset)
        .to(slice.values.scalar_type());
  };
  const Parameter& parameter = parameters_.parameters()[piece.parameter];
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!gradient.defined()) {
    const bool has_any = is_delivered_[piece.bucket] && has_gradient_[piece.parameter];
    return has_any ? shaped(ranges_[piece.bucket], piece.offset) : at::Tensor();
  }
  TORCH_CHECK_TYPE(gradient.layout() == at::kStrided, "the gradient of parameter '", parameter.name,
                   "' is ", gradient.layout(), ", but only dense gradients can be sharded");
  // A piece counts elements in the parameter's order of memory, so the gradient is taken in that.
  at::Tensor in_order = gradient;
  if (gradient.strides() != parameter.tensor.strides()) {
    in_order = at::empty_strided(gradient.sizes(), parameter.tensor.strides(), gradient.options());
    in_order.copy_(gradient);
  }
  return shaped(in_order, piece.begin);
}

std::vector<std::pair<at::Tensor, at::Tensor>> OwnGradients::by_parameter() const {
  std::vector<std::pair<at::Tensor, at::Tensor>> result;
  for (const Slice& slice : parameters_.slices()) {
    if (const at::Tensor gradient = of(slice); gradient.defined()) {
      result.emplace_back(parameters_.parameters()[slice.piece.parameter].tensor, gradient);
    }
  }
  return result;
}

std::vector<at::Tensor> OwnGradients::memory() const {
  std::vector<at::Tensor> result;
  for (size_t b = 0; b < ranges_.size(); ++b) {
    if (is_delivered_[b] && ranges_[b].numel() > 0) {
      result.push_back(ranges_[b]);
    }
  }
  for (const Parameter& parameter : parameters_.parameters()) {
    if (parameter.tensor.grad().defined()) {
      result.push_back(parameter.tensor.grad());
    }
  }
  return result;
}

void OwnGradients::clear() {
  is_delivered_.assign(is_delivered_.size(), false);
  has_gradient_.assign(has_gradient_.size(), false);
  is_used_ = false;
  scaled_by = 0;
}

void OwnGradients::drop(size_t bucket) {
  is_delivered_[bucket] = false;
  ranges_[bucket].reset();
  for (const Slot& slot : parameters_.plan().buckets()[bucket].slots) {
    has_gradient_[slot.parameter] = false;
  }
}

void OwnGradients::follow_dtype(size_t bucket) {
  if (ranges_[bucket].defined()) {
    ranges_[bucket] = ranges_[bucket].to(parameters_.stepped_options(bucket));
  }
}

void OwnGradients::follow_plan(const ShardPlan& old) {
  const at::NoGradGuard no_grad;
  auto old_ranges = std::move(ranges_);
  const auto was_delivered = std::move(is_delivered_);
  make_room();
  // By way of all ranks, a bucket at a time.
  for (size_t b = 0; b < old_ranges.size(); ++b) {
    if (!was_delivered[b]) {
      continue;
    }
    const Bucket& bucket = old.buckets()[b];
    const at::Tensor whole = at::empty({bucket.length()}, old_ranges[b].options());
    comm::all_gather(parameters_.group(), whole, old_ranges[b], "gradients for the new order",
                     bucket.bounds)
        .wait();
    old_ranges[b].reset();
    for (const Slice& slice : parameters_.slices()) {
      const Piece& piece = slice.piece;
      if (old.bucket_of(piece.parameter) == b) {
        if (!ranges_[piece.bucket].defined()) {
          range(piece.bucket).zero_();  // what is between parameters must be finite
        }
        range(piece.bucket)
            .narrow(0, piece.offset, piece.numel())
            .copy_(
                whole.narrow(0, old.slot_of(piece.parameter).offset + piece.begin, piece.numel()));
      }
    }
    for (const Slot& slot : bucket.slots) {
      is_delivered_[parameters_.plan().bucket_of(slot.parameter)] = true;
    }
  }
}

std::vector<std::pair<at::Tensor, at::Tensor>> gradients_to_compare(
    const std::vector<std::shared_ptr<FlatParameters>>& parts) {
  std::vector<std::pair<at::Tensor, at::Tensor>> result;
  for (const auto& part : parts) {
    TORCH_CHECK(!part->join,
                "gradients of ranks cannot be compared (AdaScale) within join(), where ranks may "
                "have none");
    TORCH_CHECK(!part->on_reduced,
                "gradients of ranks cannot be compared (AdaScale) with step_in_backward, which "
                "drops them one by one");
    TORCH_CHECK(!part->gradients().await_reduction,
                "gradients cannot be compared (AdaScale) before they are reduced: the last "
                "backward of a step must not be within no_sync()");
    const auto own = part->gradients().by_parameter();
    result.insert(result.end(), own.begin(), own.end());
  }
  return result;
}

}  // namespace fairshard::shard

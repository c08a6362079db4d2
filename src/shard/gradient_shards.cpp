#include <fairshard/comm/collectives.h>
#include <fairshard/shard/gradient_shards.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fairshard::shard {

GradientShards::GradientShards(std::shared_ptr<const ShardLayout> layout, int rank,
                               std::shared_ptr<const std::vector<Parameter>> parameters)
    : layout_(std::move(layout)),
      rank_(rank),
      parameters_(std::move(parameters)),
      options_(layout_->buckets().size()),
      ranges_(layout_->buckets().size()),
      is_filled_(layout_->buckets().size()),
      has_gradient_(parameters_->size()) {}

void GradientShards::begin_backward() {
  if (is_used_) {
    clear();
  }
}

at::Tensor GradientShards::range(size_t bucket) {
  at::Tensor& range = ranges_[bucket];
  if (!range.defined()) {
    range = at::empty({layout_->range_length(bucket, rank_)}, options_[bucket]);
  }
  return range;
}

void GradientShards::publish(size_t bucket, const std::vector<bool>& has_gradient) {
  is_filled_[bucket] = true;
  for (const Slot& slot : layout_->buckets()[bucket].slots) {
    has_gradient_[slot.parameter] = has_gradient_[slot.parameter] || has_gradient[slot.parameter];
  }
}

at::Tensor GradientShards::of(const Slice& slice) const {
  const Piece& piece = slice.piece;
  const auto shaped = [&](const at::Tensor& flat, int64_t offset) {
    return flat
        .as_strided(slice.values.sizes(), slice.values.strides(), flat.storage_offset() + offset)
        .to(slice.values.scalar_type());
  };
  const Parameter& parameter = (*parameters_)[piece.parameter];
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!gradient.defined()) {
    const bool has_any = is_filled_[piece.bucket] && has_gradient_[piece.parameter];
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

std::vector<at::Tensor> GradientShards::memory() const {
  std::vector<at::Tensor> result;
  for (size_t b = 0; b < ranges_.size(); ++b) {
    if (is_filled_[b] && ranges_[b].numel() > 0) {
      result.push_back(ranges_[b]);
    }
  }
  for (const Parameter& parameter : *parameters_) {
    if (parameter.tensor.grad().defined()) {
      result.push_back(parameter.tensor.grad());
    }
  }
  return result;
}

bool GradientShards::has_unused() const {
  return !is_used_ && std::find(is_filled_.begin(), is_filled_.end(), true) != is_filled_.end();
}

void GradientShards::clear() {
  is_filled_.assign(is_filled_.size(), false);
  has_gradient_.assign(has_gradient_.size(), false);
  is_used_ = false;
  scaled_by_ = 0;
}

void GradientShards::drop(size_t bucket) {
  is_filled_[bucket] = false;
  ranges_[bucket].reset();
  for (const Slot& slot : layout_->buckets()[bucket].slots) {
    has_gradient_[slot.parameter] = false;
  }
}

void GradientShards::set_options(size_t bucket, const at::TensorOptions& options) {
  options_[bucket] = options;
  if (ranges_[bucket].defined()) {
    ranges_[bucket] = ranges_[bucket].to(options);
  }
}

void GradientShards::relayout(const comm::Group& group, std::shared_ptr<const ShardLayout> layout,
                              const std::vector<Slice>& slices,
                              const std::vector<at::TensorOptions>& options) {
  const at::NoGradGuard no_grad;
  const auto old = std::exchange(layout_, std::move(layout));
  auto old_ranges = std::exchange(ranges_, std::vector<at::Tensor>(layout_->buckets().size()));
  const auto was_filled =
      std::exchange(is_filled_, std::vector<bool>(layout_->buckets().size(), false));
  options_ = options;
  // By way of all ranks, a bucket at a time.
  for (size_t b = 0; b < old_ranges.size(); ++b) {
    if (!was_filled[b]) {
      continue;
    }
    const Bucket& bucket = old->buckets()[b];
    const at::Tensor whole = at::empty({bucket.length()}, old_ranges[b].options());
    comm::all_gather(group, whole, old_ranges[b], "gradients for the new order", bucket.bounds)
        .wait();
    old_ranges[b].reset();
    for (const auto& [piece, values] : slices) {
      if (old->bucket_of(piece.parameter) == b) {
        if (!ranges_[piece.bucket].defined()) {
          range(piece.bucket).zero_();  // what is between parameters must be finite
        }
        const int64_t begin = old->slot_of(piece.parameter).offset + piece.begin;
        range(piece.bucket)
            .narrow(0, piece.offset, piece.numel())
            .copy_(whole.narrow(0, begin, piece.numel()));
      }
    }
    for (const Slot& slot : bucket.slots) {
      is_filled_[layout_->bucket_of(slot.parameter)] = true;
    }
  }
}

}  // namespace fairshard::shard

#include "flat_memory.h"
#include <fairshard/comm/collectives.h>
#include <fairshard/shard/gradient_shards.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace fairshard::shard {

GradientShards::GradientShards(comm::Group group, std::shared_ptr<const ShardLayout> layout,
                               std::shared_ptr<const std::vector<Parameter>> parameters,
                               bool are_stepped_in_backward)
    : group_(std::move(group)),
      layout_(std::move(layout)),
      parameters_(std::move(parameters)),
      are_stepped_in_backward_(are_stepped_in_backward),
      options_(layout_->buckets().size()),
      ranges_(layout_->buckets().size()),
      is_filled_(layout_->buckets().size()),
      states_(parameters_->size(), State::kNone),
      handles_(parameters_->size()) {
  find_own_pieces();
}

void GradientShards::find_own_pieces() {
  own_pieces_.assign(parameters_->size(), std::nullopt);
  for (const Piece& piece : layout_->pieces(group_.rank())) {
    own_pieces_[piece.parameter] = piece;
  }
}

at::Tensor GradientShards::range(size_t bucket) {
  at::Tensor& range = ranges_[bucket];
  if (!range.defined()) {
    range = empty_flat(layout_->range_length(bucket, group_.rank()), options_[bucket]);
  }
  return range;
}

void GradientShards::publish(size_t bucket, const std::vector<bool>& has_gradient) {
  is_filled_[bucket] = true;
  for (const Slot& slot : layout_->buckets()[bucket].slots) {
    State& state = states_[slot.parameter];
    // What was stashed has been added to.
    if (state == State::kStashed || (state == State::kNone && has_gradient[slot.parameter])) {
      state = State::kReduced;
    }
  }
  mark_changed();
}

void GradientShards::expose(size_t bucket) {
  for (const Slot& slot : layout_->buckets()[bucket].slots) {
    const at::Tensor& parameter = (*parameters_)[slot.parameter].tensor;
    if (states_[slot.parameter] == State::kNone || parameter.grad().defined()) {
      continue;
    }
    at::Tensor& handle = handles_[slot.parameter];
    if (!handle.defined()) {
      handle = make_grad_handle(weak_from_this(), slot.parameter, parameter);
    }
    parameter.mutable_grad() = handle;
    states_[slot.parameter] = State::kExposed;
  }
}

void GradientShards::stash(size_t parameter) {
  at::Tensor& gradient = (*parameters_)[parameter].tensor.mutable_grad();
  if (is_grad_handle(gradient)) {
    const bool is_own = is_grad_handle(gradient, this);  // or of an OSS that had the parameter
    states_[parameter] = is_own ? State::kStashed : states_[parameter];
    gradient.reset();
  }
}

bool GradientShards::has_any() const {
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i] != State::kNone && !is_dropped(i)) {
      return true;
    }
  }
  return false;
}

/// Whether the user has set .grad to None, or to something else, since it had a handle.
bool GradientShards::is_dropped(size_t parameter) const {
  const at::Tensor& gradient = (*parameters_)[parameter].tensor.grad();
  switch (states_[parameter]) {
    case State::kExposed:
      return !is_grad_handle(gradient, this);
    case State::kStashed:
      return !gradient.defined();
    default:
      return false;
  }
}

void GradientShards::forget_dropped() {
  for (size_t b = 0; b < ranges_.size(); ++b) {
    std::vector<size_t> dropped;
    bool is_any_left = false;
    for (const Slot& slot : layout_->buckets()[b].slots) {
      if (is_dropped(slot.parameter)) {
        states_[slot.parameter] = State::kNone;
        dropped.push_back(slot.parameter);
      }
      is_any_left = is_any_left || states_[slot.parameter] != State::kNone;
    }
    if (dropped.empty()) {
      continue;
    }
    is_filled_[b] = is_any_left;
    for (const size_t parameter : dropped) {
      const auto& piece = own_pieces_[parameter];
      if (is_any_left && piece && ranges_[b].defined()) {
        ranges_[b].narrow(0, piece->offset, piece->numel()).zero_();
      }
    }
    mark_changed();
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
  const at::Tensor gradient = whole_grad(parameter.tensor);
  if (!gradient.defined()) {
    const bool has_any = is_filled_[piece.bucket] && states_[piece.parameter] != State::kNone &&
                         !is_dropped(piece.parameter);
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

std::vector<at::Tensor> GradientShards::memory() {
  forget_dropped();
  mark_changed();  // they are about to be scaled
  std::vector<at::Tensor> result;
  for (size_t b = 0; b < ranges_.size(); ++b) {
    if (is_filled_[b] && ranges_[b].numel() > 0) {
      result.push_back(ranges_[b]);
    }
  }
  for (const Parameter& parameter : *parameters_) {
    if (const at::Tensor gradient = whole_grad(parameter.tensor); gradient.defined()) {
      result.push_back(gradient);
    }
  }
  return result;
}

void GradientShards::clear() {
  for (size_t i = 0; i < states_.size(); ++i) {
    at::Tensor& gradient = (*parameters_)[i].tensor.mutable_grad();
    if (is_grad_handle(gradient, this)) {
      gradient.reset();
    }
    states_[i] = State::kNone;
  }
  is_filled_.assign(is_filled_.size(), false);
  scaled_by_ = 0;
  mark_changed();
}

void GradientShards::drop(size_t bucket) {
  is_filled_[bucket] = false;
  ranges_[bucket].reset();
  mark_changed();
}

at::Tensor GradientShards::shard_of(size_t parameter) {
  TORCH_CHECK(!are_stepped_in_backward_, "the gradient of parameter '", name_of(parameter),
              "' cannot be used with step_in_backward, which steps and drops it in backward");
  const size_t bucket = layout_->bucket_of(parameter);
  const auto& piece = own_pieces_[parameter];
  if (!piece || !is_filled_[bucket] || states_[parameter] == State::kNone ||
      is_dropped(parameter)) {
    return at::empty({0}, options_[bucket]);
  }
  return ranges_[bucket].narrow(0, piece->offset, piece->numel());
}

/// All norms are taken at once, so that whoever asks for one after another causes one collective.
at::Tensor GradientShards::norm_of(size_t parameter, double norm_type) {
  if (!norms_ || norms_->type != norm_type) {
    norms_ = Norms{norm_type, measure_norms(norm_type)};
  }
  const auto& options = options_[layout_->bucket_of(parameter)];
  return norms_->values[static_cast<int64_t>(parameter)].to(options);
}

at::Tensor GradientShards::measure_norms(double norm_type) {
  TORCH_CHECK_VALUE(norm_type > 0, "sharded gradients have no norm of type ", norm_type,
                    ": it must be above 0");
  std::vector<at::Tensor> shards;
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < parameters_->size(); ++i) {
    if (at::Tensor shard = shard_of(i); shard.numel() > 0) {
      shards.push_back(std::move(shard));
      numbers.push_back(static_cast<int64_t>(i));
    }
  }
  const bool is_largest = std::isinf(norm_type);
  const auto options = at::TensorOptions(at::kDouble).device(options_[0].device());
  at::Tensor norms = at::zeros({static_cast<int64_t>(parameters_->size())}, options);
  if (!shards.empty()) {
    std::vector<at::Tensor> own = at::_foreach_norm(shards, norm_type, at::kDouble);
    for (at::Tensor& norm : own) {
      norm = norm.to(options);
    }
    const at::Tensor powers = is_largest ? at::stack(own) : at::stack(own).pow(norm_type);
    norms.index_copy_(0, at::tensor(numbers).to(norms.device()), powers);
  }
  comm::all_reduce(group_, norms, is_largest ? comm::ReduceOp::kMax : comm::ReduceOp::kSum,
                   "norms of sharded gradients, for which all ranks must ask")
      .wait();
  return is_largest ? norms : norms.pow(1 / norm_type);
}

void GradientShards::reduce_flag(const at::Tensor& flag) const {
  comm::all_reduce(group_, flag, comm::ReduceOp::kMax, "found infinities").wait();
}

void GradientShards::set_options(size_t bucket, const at::TensorOptions& options) {
  options_[bucket] = options;
  for (const Slot& slot : layout_->buckets()[bucket].slots) {
    handles_[slot.parameter].reset();  // the parameter may have another dtype or device
  }
  if (ranges_[bucket].defined()) {
    ranges_[bucket] = ranges_[bucket].to(options);
  }
}

void GradientShards::relayout(std::shared_ptr<const ShardLayout> layout,
                              const std::vector<Slice>& slices,
                              const std::vector<at::TensorOptions>& options) {
  const at::NoGradGuard no_grad;
  const auto old = std::exchange(layout_, std::move(layout));
  auto old_ranges = std::exchange(ranges_, std::vector<at::Tensor>(layout_->buckets().size()));
  const auto was_filled =
      std::exchange(is_filled_, std::vector<bool>(layout_->buckets().size(), false));
  options_ = options;
  find_own_pieces();
  // By way of all ranks, a bucket at a time.
  for (size_t b = 0; b < old_ranges.size(); ++b) {
    if (!was_filled[b]) {
      continue;
    }
    const Bucket& bucket = old->buckets()[b];
    const at::Tensor whole = at::empty({bucket.length()}, old_ranges[b].options());
    comm::all_gather(group_, whole, old_ranges[b], "gradients for the new order", bucket.bounds)
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

#include "bucket_filler.h"

#include <fairshard/scale/scaled_backward.h>

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <numeric>
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

/// Whether nothing stands between the gradients of this backward and a step.
void check_can_step(const FlatParameters& part) {
  TORCH_CHECK(part.gradients().scaled_by == 0,
              "step_in_backward cannot be used with a grad scaler, which finds out after backward "
              "whether there is a step");
  TORCH_CHECK(!part.join, "step_in_backward cannot be used within join()");
  TORCH_CHECK(!part.was_stepped(),
              "with step_in_backward the last backward has stepped already: call the optimizer's "
              "step() after it, or let gradients add up within no_sync()");
}

}  // namespace

BucketFiller::BucketFiller(std::vector<std::shared_ptr<FlatParameters>> parts,
                           const ReducerOptions& options)
    : parts_(std::move(parts)), options_(options) {
  TORCH_CHECK_VALUE(!parts_.empty(), "there are no parameters to reduce gradients of");
  TORCH_CHECK_VALUE(options.buckets_in_flight() >= 1, "buckets_in_flight is ",
                    options.buckets_in_flight(), ", but must be at least 1");
  for (const auto& part : parts_) {
    TORCH_CHECK_VALUE(part->group().process_group() == parts_[0]->group().process_group(),
                      "optimizers of one model must have one process group");
    TORCH_CHECK_VALUE(is_sharded() || !part->on_reduced,
                      "step_in_backward needs sharded gradients (the mode 'gradients')");
  }
  scale_ = at::native::wrapped_scalar_tensor(1.0 / parts_[0]->group().size());
  list_buckets();
}

void BucketFiller::list_buckets() {
  fills_.clear();
  places_.clear();
  for (size_t p = 0; p < parts_.size(); ++p) {
    places_.emplace_back(parts_[p]->plan().buckets().size());
    for (size_t b = 0; b < places_[p].size(); ++b) {
      places_[p][b] = fills_.size();
      Fill& fill = fills_.emplace_back();
      fill.part = p;
      fill.bucket = b;
    }
  }
}

void BucketFiller::take(ParameterId id) {
  const at::NoGradGuard no_grad;
  if (is_idle_) {
    begin();
  }
  const FlatParameters& part = *parts_[id.part];
  const size_t bucket = part.plan().bucket_of(id.number);
  const auto slot = &part.plan().slot_of(id.number) - part.plan().buckets()[bucket].slots.data();
  const size_t place = places_[id.part][bucket];
  Fill& fill = fills_[place];
  const Parameter& parameter = part.parameters()[id.number];
  TORCH_CHECK(
      place >= next_, "parameter '", parameter.name,
      "' got a gradient after its bucket had been reduced: it was used in a backward inside "
      "of backward, or was unfrozen since the forward");
  TORCH_CHECK(!fill.is_taken[slot], "parameter '", parameter.name,
              "' got two gradients in one backward");
  if (is_packed(fill)) {
    fill.packing.add_stream(parameter.tensor.device());
  } else {
    put(parameter, id.number, fill);
  }
  fill.is_taken[slot] = true;
  used_.add(id);
  --fill.missing;
  if (!is_order_known_) {
    arrivals_.push_back(id);
  }
  start_ready();
}

void BucketFiller::begin() {
  announce();
  used_ = UsedParameters(parts_);
  for (const auto& part : parts_) {
    if (is_sharded()) {
      part->gradients().begin_backward();
    }
    part->gradients().scaled_by = scale::scaler_of_backward();
    if (part->on_reduced) {
      check_can_step(*part);
      if (!part->released()) {  // whose values are away; they were followed before the forward
        part->follow_parameters();
      }
    }
    part->gradients().await_reduction = false;
  }
  for (Fill& fill : fills_) {
    const auto& slots = layout_of(fill).slots;
    fill.flat.reset();
    fill.agreement = {};
    fill.reduced.reset();
    fill.is_taken.assign(slots.size(), false);
    fill.missing = slots.size();
    // A bucket of frozen parameters is left out, on all ranks alike.
    fill.is_active = std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
      return part_of(fill).parameters()[slot.parameter].tensor.requires_grad();
    });
  }
  arrivals_.clear();
  next_ = 0;
  next_to_step_ = 0;
  is_idle_ = false;
}

/// See Join. Where every rank has whole gradients, they add up in .grad from one reduction to the
/// next until the user drops them, and a rank that only follows must drop its own then, too.
void BucketFiller::announce() {
  const auto& join = parts_[0]->join;
  if (join && !join->is_following()) {
    join->announce(Join::Action::kReduce, {has_gradients_from_before() ? 1.0 : 0.0, 0, 0});
  } else if (join && !is_sharded() && join->last().details[0] == 0) {
    for (const auto& part : parts_) {
      for (const Parameter& parameter : part->parameters()) {
        parameter.tensor.mutable_grad().reset();
      }
    }
  }
}

/// Called when one parameter has its new gradient and all others have what was there before.
bool BucketFiller::has_gradients_from_before() const {
  int found = 0;
  for (const auto& part : parts_) {
    for (const Parameter& parameter : part->parameters()) {
      const at::Tensor& gradient = parameter.tensor.grad();
      found += gradient.defined() && gradient.any().item<bool>() ? 1 : 0;
      if (found > 1) {
        return true;
      }
    }
  }
  return false;
}

void BucketFiller::reset() {
  started_.clear();
  // Who steps in backward wants the least memory, and the next forward needs some. Others want
  // speed, and fresh memory costs page faults.
  if (std::any_of(parts_.begin(), parts_.end(),
                  [](const auto& part) { return part->on_reduced; })) {
    pool_.clear();
  }
  is_idle_ = true;
}

at::ScalarType BucketFiller::wire_dtype_of(const Fill& fill) const {
  return options_.wire_dtype().value_or(part_of(fill).bucket(fill.bucket).scalar_type());
}

/// On a CPU gradients are divided on their way into the bucket, which costs nothing more than the
/// copy and gives the bits of torch's DDP. In low precision the sum, which is a wide one, is
/// divided. On a device the collective divides, as NCCL does it: on the way out of the bucket.
bool BucketFiller::averages_in_collective(const Fill& fill) const {
  return is_packed(fill) || c10::elementSize(wire_dtype_of(fill)) < sizeof(float);
}

/// Who releases values wants the least memory.
size_t BucketFiller::buckets_in_flight(const Fill& fill) const {
  return part_of(fill).released() ? 1 : static_cast<size_t>(options_.buckets_in_flight());
}

void BucketFiller::ensure_flat(Fill& fill) {
  if (fill.flat.defined()) {
    return;
  }
  const at::Tensor& values = part_of(fill).bucket(fill.bucket);
  if (!is_sharded()) {
    if (!fill.replicated.defined() || fill.replicated.scalar_type() != values.scalar_type()) {
      fill.replicated = at::zeros_like(values);
    }
    fill.flat = fill.replicated;
    return;
  }
  // What is stepped in backward needs its memory until then, so waiting would bring none.
  while (!is_stepped_in_backward(fill) && started_.size() >= buckets_in_flight(fill)) {
    finish_oldest();
  }
  fill.flat = pool_.take(values.numel(), wire_dtype_of(fill), values);
}

void BucketFiller::put(const Parameter& parameter, size_t number, Fill& fill) {
  const at::Tensor gradient = parameter.tensor.grad();
  check_can_be_reduced(parameter, gradient);
  ensure_flat(fill);
  at::Tensor view = part_of(fill).view_of(number, fill.flat);
  if (!averages_in_collective(fill)) {
    at::mul_out(view, gradient, scale_);
  } else if (gradient.const_data_ptr() != view.const_data_ptr()) {
    view.copy_(gradient);
  }
  parameter.tensor.mutable_grad() = is_sharded() ? at::Tensor() : view;
}

void BucketFiller::pack(Fill& fill) {
  if (is_packed(fill)) {
    ensure_flat(fill);
    fill.packing.pack(part_of(fill), layout_of(fill), fill.flat, /*keeps=*/!is_sharded());
  }
}

void BucketFiller::put_missing(Fill& fill) {
  ensure_flat(fill);
  const auto& slots = layout_of(fill).slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (fill.is_taken[i]) {
      continue;
    }
    const Parameter& parameter = part_of(fill).parameters()[slots[i].parameter];
    if (!parameter.tensor.grad().defined()) {
      fill.flat.narrow(0, slots[i].offset, slots[i].numel).zero_();
      continue;
    }
    // Set by hand, or left by backwards that were not reduced (or, replicated, that were).
    used_.add({fill.part, slots[i].parameter});
    if (is_packed(fill)) {
      fill.packing.add_stream(parameter.tensor.device());
    } else {
      put(parameter, slots[i].parameter, fill);
    }
  }
}

void BucketFiller::start_ready() {
  while (next_ < fills_.size() && (!fills_[next_].is_active || fills_[next_].missing == 0)) {
    if (fills_[next_].is_active) {
      start(fills_[next_]);
    }
    ++next_;
  }
}

/// See Note [Steps in backward] in grad_reducer.h.
void BucketFiller::step_before(size_t place) {
  for (; next_to_step_ < place; ++next_to_step_) {
    Fill& fill = fills_[next_to_step_];
    if (!is_stepped_in_backward(fill)) {
      continue;
    }
    while (!started_.empty() && started_.front().fill <= &fill) {
      finish_oldest();
    }
    used_.take(std::exchange(fill.agreement, {}), [&](comm::Work& work) { wait(work); });
    part_of(fill).gradients().deliver(fill.bucket, used_.of(fill.part));
    part_of(fill).step_bucket(fill.bucket);
    if (fill.reduced.defined()) {
      pool_.give_back(std::exchange(fill.reduced, at::Tensor()));
    }
  }
}

bool BucketFiller::can_reduce_within(const Fill& fill) const {
  const FlatParameters& part = part_of(fill);
  return is_stepped_in_backward(fill) && !part.gradients().are_delivered(fill.bucket) &&
         !part.has_copy(fill.bucket) &&
         fill.flat.scalar_type() == part.bucket(fill.bucket).scalar_type();
}

void BucketFiller::start(Fill& fill) {
  pack(fill);
  const comm::Group& group = parts_[0]->group();
  const auto op = averages_in_collective(fill) ? comm::ReduceOp::kAvg : comm::ReduceOp::kSum;
  if (!is_sharded()) {
    const bool is_cast = wire_dtype_of(fill) != fill.flat.scalar_type();
    const at::Tensor wire = is_cast ? fill.flat.to(wire_dtype_of(fill)) : fill.flat;
    auto work = comm::all_reduce(group, wire, op, label(fill));
    started_.push_back({&fill, fill.flat, is_cast ? wire : at::Tensor(), std::move(work)});
    return;
  }
  const auto place = static_cast<size_t>(&fill - fills_.data());
  const size_t in_flight = buckets_in_flight(fill);
  step_before(place + 1 > in_flight ? place + 1 - in_flight : 0);
  clear_padding(layout_of(fill), fill.flat);
  if (can_reduce_within(fill)) {
    fill.reduced = fill.flat;
    part_of(fill).gradients().reduce_within(fill.bucket, fill.flat);
  }
  const at::Tensor own = part_of(fill).gradients().range(fill.bucket);
  const bool adds = part_of(fill).gradients().are_delivered(fill.bucket);
  const at::Tensor arrival = adds ? at::empty_like(own) : own;
  auto work =
      comm::reduce_scatter(group, arrival, fill.flat, op, label(fill), layout_of(fill).bounds);
  started_.push_back({&fill, std::exchange(fill.flat, at::Tensor()), adds ? arrival : at::Tensor(),
                      std::move(work)});
  if (is_stepped_in_backward(fill)) {
    fill.agreement =
        used_.start_agreement(group, parameters_of(fill), "used parameters of " + label(fill));
  }
}

/// See Note [Released values]: ranks that have not come here may need what this one has not begun
/// to gather.
void BucketFiller::wait(comm::Work& work) {
  constexpr std::chrono::milliseconds kLong(20);
  for (const auto& part : parts_) {
    while (part->released() && !work.is_done_within(kLong) && part->released()->start_next()) {
    }
  }
  work.wait();
}

void BucketFiller::finish_oldest() {
  Started started = std::move(started_.front());
  started_.pop_front();
  wait(started.work);
  if (!is_sharded()) {
    if (started.arrival.defined()) {
      started.flat.copy_(started.arrival);
    }
    return;
  }
  if (started.arrival.defined()) {
    part_of(*started.fill).gradients().range(started.fill->bucket).add_(started.arrival);
  }
  if (!started.fill->reduced.defined()) {
    pool_.give_back(started.flat);
  }
}

void BucketFiller::finish() {
  const at::NoGradGuard no_grad;
  try {
    if (is_idle_) {
      begin();
    }
    for (const auto& part : parts_) {
      if (part->released()) {
        part->released()->start_all();  // ranks that are still in backward may need them
      }
    }
    for (; next_ < fills_.size(); ++next_) {
      if (fills_[next_].is_active) {
        put_missing(fills_[next_]);
        start(fills_[next_]);
      }
    }
    step_before(fills_.size());
    agree_on_used();
    while (!started_.empty()) {
      finish_oldest();
    }
    deliver();
    for (const auto& part : parts_) {
      if (part->released()) {
        part->released()->end_backward();  // which knows of it already, if there was one
      }
    }
    if (!is_order_known_) {
      learn_order();
    }
  } catch (...) {
    reset();
    throw;
  }
  reset();
}

void BucketFiller::deliver() {
  for (const Fill& fill : fills_) {
    if (!fill.is_active || is_stepped_in_backward(fill)) {
      continue;
    }
    if (is_sharded()) {
      part_of(fill).gradients().deliver(fill.bucket, used_.of(fill.part));
      continue;
    }
    for (const Slot& slot : layout_of(fill).slots) {
      // A rank without a gradient of its own has that of others.
      at::Tensor& gradient = part_of(fill).parameters()[slot.parameter].tensor.mutable_grad();
      if (!gradient.defined() && used_.has({fill.part, slot.parameter})) {
        gradient = part_of(fill).view_of(slot.parameter, fill.replicated);
      }
    }
  }
}

std::vector<ParameterId> BucketFiller::parameters_of(const Fill& fill) const {
  std::vector<ParameterId> ids;
  for (const Slot& slot : layout_of(fill).slots) {
    ids.push_back({fill.part, slot.parameter});
  }
  return ids;
}

void BucketFiller::agree_on_used() {
  // See Note [Unused parameters] in grad_reducer.h.
  std::vector<ParameterId> ids;
  for (const Fill& fill : fills_) {
    if (fill.is_active && !is_stepped_in_backward(fill)) {
      const auto own = parameters_of(fill);
      ids.insert(ids.end(), own.begin(), own.end());
    }
  }
  if (!ids.empty()) {
    used_.take(used_.start_agreement(parts_[0]->group(), std::move(ids), "used parameters"),
               [&](comm::Work& work) { wait(work); });
  }
}

void BucketFiller::learn_order() {
  // See Note [Order of buckets] in grad_reducer.h.
  const ArrivalOrder arrival = agree_on_order(parts_, arrivals_);
  for (size_t p = 0; p < parts_.size(); ++p) {
    const auto& positions = arrival.positions[p];
    std::vector<size_t> order(positions.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return positions[a] < positions[b]; });
    if (!arrival.is_settled[p] && order != parts_[p]->plan().order()) {
      parts_[p]->reorder(order);
    }
  }
  list_buckets();
  // A bucket can start when the last of its gradients has come.
  const auto last = [&](const Fill& fill) {
    int64_t result = 0;
    for (const Slot& slot : layout_of(fill).slots) {
      result = std::max(result, arrival.positions[fill.part][slot.parameter]);
    }
    return result;
  };
  std::stable_sort(fills_.begin(), fills_.end(),
                   [&](const Fill& a, const Fill& b) { return last(a) < last(b); });
  for (size_t place = 0; place < fills_.size(); ++place) {
    places_[fills_[place].part][fills_[place].bucket] = place;
  }
  is_order_known_ = true;
}

std::string BucketFiller::label(const Fill& fill) const {
  const auto& slots = layout_of(fill).slots;
  const auto& names = part_of(fill).parameters();
  return c10::str("gradients of bucket ", fill.bucket, ": ", names[slots.front().parameter].name,
                  slots.size() > 1 ? " to " + names[slots.back().parameter].name : "");
}

}  // namespace fairshard::shard

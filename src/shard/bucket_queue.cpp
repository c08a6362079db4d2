#include "bucket_queue.h"

#include "flat_memory.h"
#include "reductions.h"
#include <fairshard/comm/profiler_range.h>
#include <fairshard/scale/scaled_backward.h>

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace fairshard::shard {
namespace {

BackwardContext make_context(const std::vector<ReducedGroup>& groups,
                             const ReducerOptions& options) {
  TORCH_CHECK_VALUE(!groups.empty(), "there are no parameters to reduce gradients of");
  TORCH_CHECK_VALUE(options.buckets_in_flight() >= 1, "buckets_in_flight is ",
                    options.buckets_in_flight(), ", but must be at least 1");
  const comm::Mesh& mesh = groups[0].group->mesh();
  BackwardContext context{.mesh = mesh,
                          .groups = {},
                          .options = options,
                          .used = {},
                          .replica_sums = ReplicaSums(mesh)};
  for (const auto& [group, step] : groups) {
    TORCH_CHECK_VALUE(
        group->mesh().all().process_group() == mesh.all().process_group() &&
            group->group().process_group() == mesh.shards().process_group(),
        "optimizers of one model must have one process group, or the same groups of a mesh");
    context.groups.push_back(group);
  }
  return context;
}

}  // namespace

BucketQueue::BucketQueue(std::vector<ReducedGroup> groups, const ReducerOptions& options)
    : groups_(std::move(groups)),
      context_(make_context(groups_, options)),
      scale_(at::native::wrapped_scalar_tensor(1.0 / context_.mesh.all().size())) {
  choose_reductions();
  list_buckets();
}

/// Groups of one kind share a reduction, so that they share its memory.
void BucketQueue::choose_reductions() {
  reductions_.clear();
  std::shared_ptr<Reduction> shared;
  for (const ReducedGroup& group : groups_) {
    const bool do_step = group.group->options().step_in_backward();
    if (do_step || !shared) {
      reductions_.push_back(make_reduction(context_, group, do_step));
      shared = do_step ? shared : reductions_.back();
    } else {
      reductions_.push_back(shared);
    }
  }
}

void BucketQueue::list_buckets() {
  buckets_.clear();
  places_.clear();
  for (size_t g = 0; g < context_.groups.size(); ++g) {
    places_.emplace_back(context_.groups[g]->layout().buckets().size());
    for (size_t b = 0; b < places_[g].size(); ++b) {
      places_[g][b] = buckets_.size();
      PendingBucket& bucket = buckets_.emplace_back();
      bucket.group = g;
      bucket.bucket = b;
    }
  }
}

void BucketQueue::begin() {
  const at::NoGradGuard no_grad;
  context_.replica_sums.start_rest();
  announce();
  context_.used = UsedParameters(context_.groups, promise_);
  context_.scaler = scale::scaler_of_backward();
  for (size_t g = 0; g < context_.groups.size(); ++g) {
    reductions_[g]->begin_backward(*context_.groups[g]);
    context_.groups[g]->gradients().set_scaled_by(context_.scaler);
    context_.groups[g]->gradients().set_await_reduction(false);
  }
  context_.active_buckets = 0;
  for (PendingBucket& bucket : buckets_) {
    const auto& slots = bucket.layout(context_).slots;
    bucket.flat.reset();
    bucket.is_taken.assign(slots.size(), false);
    bucket.missing = slots.size();
    bucket.is_active = bucket.values(context_).is_trainable();
    bucket.number = context_.active_buckets;
    context_.active_buckets += bucket.is_active ? 1 : 0;
  }
  arrivals_.clear();
  next_ = 0;
  is_idle_ = false;
}

/// See Join. Gradients add up from one reduction to the next until the user drops them, and a rank
/// that only follows must drop its own then, too.
void BucketQueue::announce() {
  if (join_ && !join_->is_following()) {
    const bool had_any = had_gradients_.value_or(has_gradients_from_before());
    join_->announce(Join::Action::kReduce, {had_any ? 1.0 : 0.0, 0, 0});
    had_gradients_.reset();
  } else if (join_ && join_->last().details[0] == 0) {
    for (const auto& group : context_.groups) {
      group->gradients().clear();
      for (const Parameter& parameter : group->parameters()) {
        parameter.tensor.mutable_grad().reset();
      }
    }
  }
}

/// Called before a backward puts its first gradient into .grad.
bool BucketQueue::has_gradients_from_before() const {
  return std::any_of(context_.groups.begin(), context_.groups.end(), [](const auto& group) {
    const auto& parameters = group->parameters();
    return group->gradients().has_any() ||
           std::any_of(parameters.begin(), parameters.end(), [](const Parameter& parameter) {
             const at::Tensor gradient = whole_grad(parameter.tensor);
             return gradient.defined() && gradient.any().template item<bool>();
           });
  });
}

void BucketQueue::begin_unreduced() {
  if (join_ && !had_gradients_) {
    had_gradients_ = has_gradients_from_before();
  }
}

void BucketQueue::reset() {
  for (const auto& reduction : reductions_) {
    reduction->reset();
  }
  is_idle_ = true;
}

void BucketQueue::take(ParameterId id) {
  const at::NoGradGuard no_grad;
  const ShardLayout& layout = context_.groups[id.group]->layout();
  const size_t place = places_[id.group][layout.bucket_of(id.number)];
  const size_t slot = layout.slot_number_of(id.number);
  PendingBucket& bucket = buckets_[place];
  TORCH_CHECK(
      place >= next_, "parameter '", bucket.values(context_).parameter(slot).name,
      "' got a gradient after its bucket had been reduced: it was used in a backward inside "
      "of backward, or was unfrozen since the forward");
  TORCH_CHECK(!bucket.is_taken[slot], "parameter '", bucket.values(context_).parameter(slot).name,
              "' got two gradients in one backward");
  collect(bucket, slot);
  context_.replica_sums.advance();
  bucket.is_taken[slot] = true;
  --bucket.missing;
  if (!is_order_known_) {
    arrivals_.push_back(id);
  }
  start_ready();
}

void BucketQueue::ensure_memory(PendingBucket& bucket) {
  if (!bucket.flat.defined()) {
    reduction_of(bucket).allocate(bucket);
  }
}

/// Puts a gradient into the bucket, or notes that it is there to be packed with the others.
void BucketQueue::collect(PendingBucket& bucket, size_t slot) {
  const FlatBucket& values = bucket.values(context_);
  const Parameter& parameter = values.parameter(slot);
  context_.used.add({bucket.group, values.layout().slots[slot].parameter});
  if (bucket.is_packed(context_)) {
    bucket.packing.add_stream(parameter.tensor.device());
    return;
  }
  const at::Tensor gradient = parameter.tensor.grad();
  check_can_be_reduced(parameter, gradient);
  ensure_memory(bucket);
  at::Tensor place = view_of(parameter, values.layout().slots[slot], bucket.flat);
  if (!bucket.averages_in_collective(context_)) {
    at::mul_out(place, gradient, scale_);
  } else if (gradient.const_data_ptr() != place.const_data_ptr()) {
    place.copy_(gradient);
  }
  parameter.tensor.mutable_grad() = reduction_of(bucket).keeps_gradients() ? place : at::Tensor();
}

void BucketQueue::collect_missing(PendingBucket& bucket) {
  ensure_memory(bucket);
  const auto& slots = bucket.layout(context_).slots;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (bucket.is_taken[i]) {
      continue;
    }
    if (whole_grad(bucket.values(context_).parameter(i).tensor).defined()) {
      // Set by hand, or left by backwards that were not reduced (or, replicated, that were).
      collect(bucket, i);
    } else {
      bucket.flat.narrow(0, slots[i].offset, slots[i].numel).zero_();
    }
  }
}

void BucketQueue::start_ready() {
  while (next_ < buckets_.size() && (!buckets_[next_].is_active || buckets_[next_].missing == 0)) {
    if (buckets_[next_].is_active) {
      start(buckets_[next_]);
    }
    ++next_;
  }
}

void BucketQueue::start(PendingBucket& bucket) {
  const comm::ProfilerRange range([&] { return "reduce " + bucket.label(context_); });
  if (promise_) {
    context_.used.check_promise(context_.groups, bucket.parameters(context_));
  }
  if (bucket.is_packed(context_)) {
    ensure_memory(bucket);
    bucket.packing.pack(bucket.values(context_), bucket.flat,
                        reduction_of(bucket).keeps_gradients());
  }
  reduction_of(bucket).start(bucket);
}

void BucketQueue::finish() {
  const at::NoGradGuard no_grad;
  const comm::ProfilerRange range([] { return "reduce the rest"; });
  try {
    if (is_idle_) {
      begin();
    }
    for (const auto& group : context_.groups) {
      if (group->schedule()) {
        group->schedule()->start_all();  // ranks that are still in backward may need them
      }
    }
    for (; next_ < buckets_.size(); ++next_) {
      if (buckets_[next_].is_active) {
        collect_missing(buckets_[next_]);
        start(buckets_[next_]);
      }
    }
    auto agreement = start_agreement();
    for (const auto& reduction : reductions_) {
      reduction->finish();
    }
    context_.used.take(std::move(agreement), [&](comm::Work& work) { context_.wait(work); });
    if (context_.options.static_graph() && !promise_) {
      promise_ = context_.used.as_promise();
    }
    publish();
    for (const auto& group : context_.groups) {
      if (group->schedule()) {
        group->schedule()->end_backward();  // which knows of it already, if there was one
      }
    }
    if (!is_order_known_) {
      learn_order();
    }
    return_what_is_free();
    if (context_.options.after_reduction() && !join_) {
      context_.options.after_reduction()();
    }
  } catch (...) {
    reset();
    throw;
  }
  reset();
}

/// Where memory matters most. See Note [Memory of buckets].
void BucketQueue::return_what_is_free() const {
  if (std::any_of(context_.groups.begin(), context_.groups.end(), [](const auto& group) {
        return group->schedule() && group->options().reshard_after_step() &&
               group->bucket(0).flat().is_cpu();
      })) {
    return_freed_memory();
  }
}

/// See Note [Unused parameters] in grad_reducer.h.
UsedParameters::Agreement BucketQueue::start_agreement() {
  std::vector<ParameterId> ids;
  for (const PendingBucket& bucket : buckets_) {
    if (!promise_ && bucket.is_active && reduction_of(bucket).agrees_at_end()) {
      const auto own = bucket.parameters(context_);
      ids.insert(ids.end(), own.begin(), own.end());
    }
  }
  if (ids.empty()) {
    return {};
  }
  return context_.used.start_agreement(context_.mesh.all(), std::move(ids), "used parameters");
}

void BucketQueue::publish() {
  for (PendingBucket& bucket : buckets_) {
    if (bucket.is_active) {
      reduction_of(bucket).publish(bucket);
    }
  }
}

/// See Note [Order of buckets] in grad_reducer.h.
void BucketQueue::learn_order() {
  const ArrivalOrder arrival = agree_on_order(context_.groups, arrivals_);
  for (size_t g = 0; g < context_.groups.size(); ++g) {
    const auto& positions = arrival.positions[g];
    std::vector<size_t> order(positions.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return positions[a] < positions[b]; });
    if (!arrival.is_frozen[g] && order != context_.groups[g]->layout().order()) {
      context_.groups[g]->relayout(order);
    }
  }
  list_buckets();
  // A bucket can start when the last of its gradients has come.
  const auto last = [&](const PendingBucket& bucket) {
    int64_t result = 0;
    for (const Slot& slot : bucket.layout(context_).slots) {
      result = std::max(result, arrival.positions[bucket.group][slot.parameter]);
    }
    return result;
  };
  std::stable_sort(
      buckets_.begin(), buckets_.end(),
      [&](const PendingBucket& a, const PendingBucket& b) { return last(a) < last(b); });
  for (size_t place = 0; place < buckets_.size(); ++place) {
    places_[buckets_[place].group][buckets_[place].bucket] = place;
  }
  is_order_known_ = true;
}

}  // namespace fairshard::shard

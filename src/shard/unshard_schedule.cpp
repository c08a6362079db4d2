#include <fairshard/shard/unshard_schedule.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <set>
#include <utility>

namespace fairshard::shard {
namespace {

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

}  // namespace

UnshardSchedule::UnshardSchedule(const comm::Group& group, std::vector<FlatBucket>& buckets,
                                 std::shared_ptr<const ShardLayout> layout,
                                 const UnshardOptions& options)
    : buckets_(buckets),
      layout_(std::move(layout)),
      options_(options),
      group_(group.duplicate()),
      uses_(buckets.size()) {}

void UnshardSchedule::set_blocks(std::vector<std::vector<size_t>> blocks,
                                 std::vector<size_t> order) {
  Lock lock(mutex_);
  // A model that has grown may have resharded by its old blocks.
  while (start_next_for_forward() || start_next_for_backward()) {
  }
  wait_for_all(lock);
  blocks_ = std::move(blocks);
  block_order_ = std::move(order);
  index_blocks();
}

void UnshardSchedule::set_layout(std::shared_ptr<const ShardLayout> layout) {
  const Lock lock(mutex_);
  layout_ = std::move(layout);
  index_blocks();
}

void UnshardSchedule::index_blocks() {
  TORCH_INTERNAL_ASSERT(!is_any_away());
  uses_ = std::vector<Use>(buckets_.size());
  buckets_of_.assign(blocks_.size(), {});
  forward_order_.clear();
  std::set<size_t> unused;
  for (const auto& bucket : layout_->buckets()) {
    for (const Slot& slot : bucket.slots) {
      unused.insert(slot.parameter);
    }
  }
  for (const size_t block : block_order_) {
    std::set<size_t> buckets;
    for (const size_t parameter : blocks_[block]) {
      unused.erase(parameter);
      buckets.insert(layout_->bucket_of(parameter));
    }
    // Against the order of gradients, as that is how layers run.
    buckets_of_[block].assign(buckets.rbegin(), buckets.rend());
    for (const size_t b : buckets_of_[block]) {
      if (uses_[b].count++ == 0) {
        forward_order_.push_back(b);
      }
    }
  }
  for (const size_t parameter : unused) {
    uses_[layout_->bucket_of(parameter)].count = 0;
  }
}

/// Of a block that is not known yet nothing is ever sharded.
const std::vector<size_t>& UnshardSchedule::buckets_of(size_t block) const {
  static const std::vector<size_t> none;
  return block < buckets_of_.size() ? buckets_of_[block] : none;
}

bool UnshardSchedule::is_sharded(size_t bucket) const {
  return buckets_[bucket].state() == FlatBucket::State::kSharded;
}

bool UnshardSchedule::awaits_forward(size_t bucket) const {
  return is_sharded(bucket) && uses_[bucket].is_stepped;
}

bool UnshardSchedule::awaits_backward(size_t bucket) const {
  return is_sharded(bucket) && !uses_[bucket].is_stepped;
}

bool UnshardSchedule::is_any_away() const {
  return std::any_of(buckets_.begin(), buckets_.end(), [](const FlatBucket& bucket) {
    return bucket.state() != FlatBucket::State::kUnsharded;
  });
}

// One bucket at a time.

void UnshardSchedule::reshard(size_t bucket) {
  if (can_reshard(bucket) && !is_sharded(bucket)) {
    buckets_[bucket].reshard();
    uses_[bucket].is_stepped = false;
  }
}

void UnshardSchedule::start(size_t bucket) {
  buckets_[bucket].start_unshard(group_);
  uses_[bucket].is_stepped = false;
}

void UnshardSchedule::wait(Lock& lock, size_t bucket) {
  if (buckets_[bucket].state() == FlatBucket::State::kUnsharding) {
    comm::Work work = buckets_[bucket].work();
    lock.unlock();
    work.wait();
    lock.lock();
    buckets_[bucket].wait();
  }
}

bool UnshardSchedule::reshard_until_forward(size_t bucket) {
  // Master weights are gathered as what they round to.
  if (!options_.reshard_after_step || !can_reshard(bucket) || buckets_[bucket].has_master()) {
    return false;
  }
  reshard(bucket);
  uses_[bucket].is_stepped = true;
  return true;
}

bool UnshardSchedule::reshard_stepped(size_t bucket) {
  const Lock lock(mutex_);
  return reshard_until_forward(bucket);
}

// In the order of the passes.

bool UnshardSchedule::start_next_for_backward() {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (awaits_backward(b)) {
      start(b);
      return true;
    }
  }
  return false;
}

bool UnshardSchedule::start_next_for_forward() {
  const auto next = std::find_if(forward_order_.begin(), forward_order_.end(),
                                 [&](size_t bucket) { return awaits_forward(bucket); });
  if (next == forward_order_.end()) {
    return false;
  }
  start(*next);
  return true;
}

bool UnshardSchedule::start_next() {
  const Lock lock(mutex_);
  return start_next_for_backward();
}

void UnshardSchedule::start_all() {
  const Lock lock(mutex_);
  while (start_next_for_backward()) {
  }
}

void UnshardSchedule::start_up_to(size_t bucket) {
  while (awaits_forward(bucket)) {
    start_next_for_forward();
  }
  while (awaits_backward(bucket)) {
    start_next_for_backward();
  }
}

void UnshardSchedule::wait_for_all(Lock& lock) {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    wait(lock, b);
  }
}

void UnshardSchedule::unshard_rest_of_forward(Lock& lock) {
  while (start_next_for_forward()) {
  }
  wait_for_all(lock);
}

void UnshardSchedule::unshard_rest_of_backward(Lock& lock) {
  awaits_end_of_backward_ = false;
  pass_ = Pass::kNone;
  while (start_next_for_backward()) {
  }
  wait_for_all(lock);
}

/// Does what ranks that came to the end of this forward have done.
void UnshardSchedule::complete_forward(Lock& lock) {
  if (pass_ == Pass::kForward) {
    unshard_rest_of_forward(lock);
    for (size_t b = 0; b < buckets_.size(); ++b) {
      reshard(b);
    }
    pass_ = Pass::kBackward;
  }
}

void UnshardSchedule::unshard(size_t bucket) {
  Lock lock(mutex_);
  if (is_sharded(bucket)) {
    complete_forward(lock);
    start_up_to(bucket);
  }
  wait(lock, bucket);
}

void UnshardSchedule::unshard_all() {
  Lock lock(mutex_);
  if (is_any_away()) {
    complete_forward(lock);
    unshard_rest_of_forward(lock);
    while (start_next_for_backward()) {
    }
    wait_for_all(lock);
  }
}

// What the model does.

void UnshardSchedule::begin_forward(bool is_training, bool by_block) {
  Lock lock(mutex_);
  complete_forward(lock);
  if (pass_ == Pass::kBackward) {
    unshard_rest_of_backward(lock);
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (options_.step_in_backward && buckets_[b].is_trainable()) {
        reshard_until_forward(b);  // as ranks that came to the end of this backward have done
      }
    }
  }
  const bool is_resharding = is_training && at::GradMode::is_enabled();
  if (!is_resharding || !by_block) {
    unshard_rest_of_forward(lock);
  }
  pass_ = is_resharding ? Pass::kForward : Pass::kNone;
  for (Use& use : uses_) {
    use.left = use.count;
  }
}

void UnshardSchedule::start_block(size_t block) {
  const Lock lock(mutex_);
  if (is_in_backward()) {
    call_when_backward_ends();
    for (const size_t b : buckets_of(block)) {
      // What was stepped is needed no more, though the gradient of one more output has come.
      if (awaits_backward(b)) {
        start_up_to(b);
      }
    }
    start_next_for_backward();
    return;
  }
  for (const size_t b : buckets_of(block)) {
    if (pass_ == Pass::kForward && awaits_backward(b)) {
      // It runs again. Ranks that have left out other blocks have yet to unshard theirs.
      while (start_next_for_forward()) {
      }
      start(b);
      uses_[b].count += 1;
    }
    start_up_to(b);
  }
  start_next_for_forward();
}

void UnshardSchedule::wait_for_block(size_t block) {
  Lock lock(mutex_);
  for (const size_t b : buckets_of(block)) {
    wait(lock, b);
  }
}

void UnshardSchedule::after_block(size_t block) {
  const Lock lock(mutex_);
  if (is_in_backward() || pass_ != Pass::kForward) {
    return;
  }
  for (const size_t b : buckets_of(block)) {
    if (--uses_[b].left <= 0) {
      reshard(b);
    }
  }
}

void UnshardSchedule::end_forward(bool do_reshard) {
  Lock lock(mutex_);
  if (do_reshard) {
    complete_forward(lock);
  } else if (pass_ == Pass::kForward) {
    unshard_rest_of_forward(lock);
    pass_ = Pass::kNone;
  }
}

void UnshardSchedule::call_when_backward_ends() {
  if (pass_ != Pass::kBackward || std::exchange(awaits_end_of_backward_, true)) {
    return;
  }
  torch::autograd::Engine::get_default_engine().queue_callback([self = weak_from_this()] {
    if (const auto schedule = self.lock()) {
      schedule->end_backward();
    }
  });
}

void UnshardSchedule::end_backward() {
  Lock lock(mutex_);
  unshard_rest_of_backward(lock);
}

}  // namespace fairshard::shard

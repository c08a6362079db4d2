#include <fairshard/shard/flat_parameters.h>
#include <fairshard/shard/released_values.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

namespace fairshard::shard {
namespace {

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

/// Gives a tensor's storage other memory, which all tensors on that storage then have.
void reallocate(const at::Tensor& tensor, int64_t bytes) {
  const c10::OptionalDeviceGuard guard(tensor.device());
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(static_cast<size_t>(bytes)));
  storage.set_nbytes(static_cast<size_t>(bytes));
}

/// A tensor like the parameter, which answers whoever reads it.
at::Tensor make_stand_in(const Parameter& parameter) {
  const at::Tensor& like = parameter.tensor;
  auto* const allocator = like.storage().allocator();
  c10::Storage storage(c10::Storage::use_byte_size_t(), like.nbytes(), allocator->allocate(0),
                       allocator, /*resizable=*/false);
  const at::Tensor result =
      at::empty({0}, like.options()).set_(storage, 0, like.sizes(), like.strides());
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(c10::str(
      "parameter '", parameter.name,
      "' has no values between the end of its module's forward and its backward, nor, with "
      "overlap_gather, between steps (release_parameters): use it within its own module, or "
      "call wait_for_parameters() on all ranks first"));
  return result;
}

comm::Group all_of(const comm::Group& group) {
  std::vector<int> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return group.subgroup(ranks);
}

}  // namespace

ReleasedValues::ReleasedValues(FlatParameters& part, bool gather_in_forward)
    : part_(part), group_(all_of(part.group())), gathers_in_forward_(gather_in_forward) {
  follow_plan();
}

void ReleasedValues::set_blocks(std::vector<std::vector<size_t>> blocks) {
  const std::lock_guard lock(mutex_);
  finish_forward();
  blocks_ = std::move(blocks);
  follow_plan();
}

void ReleasedValues::follow_plan() {
  TORCH_INTERNAL_ASSERT(!is_any_away());
  const auto& plan = part_.plan();
  states_ = std::vector<State>(plan.buckets().size());
  stand_ins_.resize(part_.parameters().size());
  buckets_of_.clear();
  std::vector<bool> is_used(part_.parameters().size());
  for (const auto& block : blocks_) {
    std::set<size_t> buckets;
    for (const size_t parameter : block) {
      is_used[parameter] = true;
      buckets.insert(plan.bucket_of(parameter));
    }
    for (const size_t b : buckets) {
      states_[b].uses += 1;
      states_[b].left += 1;
    }
    buckets_of_.emplace_back(buckets.begin(), buckets.end());
  }
  for (size_t i = 0; i < is_used.size(); ++i) {
    if (!is_used[i]) {
      states_[plan.bucket_of(i)].uses = 0;
    }
  }
}

/// Those that a block uses, of what may be away: of a block that is not known yet, none.
const std::vector<size_t>& ReleasedValues::buckets_of(size_t block) const {
  static const std::vector<size_t> kNone;
  return block < buckets_of_.size() ? buckets_of_[block] : kNone;
}

bool ReleasedValues::is_any_away() const {
  return std::any_of(states_.begin(), states_.end(),
                     [](const State& state) { return state.is_away; });
}

void ReleasedValues::release(size_t bucket) {
  State& state = states_[bucket];
  if (state.is_away || !is_releasable(bucket)) {
    return;
  }
  const at::NoGradGuard no_grad;
  part_.wait_for_bucket(bucket);
  state.own = part_.own_range(bucket).clone();
  for (const Slot& slot : part_.plan().buckets()[bucket].slots) {
    at::Tensor tensor = part_.parameters()[slot.parameter].tensor;
    tensor.set_data(stand_in(slot.parameter));
  }
  reallocate(part_.bucket(bucket), 0);
  state.is_away = true;
}

void ReleasedValues::release_all() {
  for (size_t b = 0; b < states_.size(); ++b) {
    release(b);
  }
}

bool ReleasedValues::keep_away(size_t bucket) {
  const std::lock_guard lock(mutex_);
  // Who has exact copies gathers what they round to.
  if (!gathers_in_forward_ || !is_releasable(bucket) || part_.has_copy(bucket)) {
    return false;
  }
  release(bucket);
  states_[bucket].is_for_forward = true;
  return true;
}

const at::Tensor& ReleasedValues::stand_in(size_t parameter) {
  const Parameter& like = part_.parameters()[parameter];
  at::Tensor& result = stand_ins_[parameter];
  if (!result.defined() || result.scalar_type() != like.tensor.scalar_type() ||
      result.sizes() != like.tensor.sizes() || result.strides() != like.tensor.strides()) {
    result = make_stand_in(like);
  }
  return result;
}

void ReleasedValues::start_fetch(size_t bucket) {
  State& state = states_[bucket];
  if (!state.own.defined()) {
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor& flat = part_.bucket(bucket);
  reallocate(flat, static_cast<int64_t>(flat.nbytes()));
  part_.own_range(bucket).copy_(state.own);
  state.fetch = comm::all_gather(group_, flat, part_.own_range(bucket),
                                 c10::str("released parameters of bucket ", bucket),
                                 part_.plan().buckets()[bucket].bounds, static_cast<int>(bucket));
  state.own.reset();
}

void ReleasedValues::wait(size_t bucket) {
  State& state = states_[bucket];
  if (!state.is_away) {
    return;
  }
  state.fetch.wait();
  state.fetch = {};
  state.is_away = false;
  state.is_for_forward = false;
  for (const Slot& slot : part_.plan().buckets()[bucket].slots) {
    at::Tensor tensor = part_.parameters()[slot.parameter].tensor;
    tensor.set_data(part_.view_of(slot.parameter, part_.bucket(bucket)));
  }
}

void ReleasedValues::bring_back(size_t bucket) {
  const std::lock_guard lock(mutex_);
  const State& state = states_[bucket];
  if (!state.is_away) {
    return;
  }
  if (state.is_for_forward) {
    while (state.own.defined()) {
      start_next_for_forward();
    }
  } else if (pass_ == Pass::kForward) {
    // Its block runs again. Ranks that have left out others have yet to gather theirs.
    while (start_next_for_forward()) {
    }
    start_fetch(bucket);
    states_[bucket].uses += 1;  // so that the next forward keeps it until then
  } else {
    while (state.own.defined()) {
      start_next();
    }
  }
  wait(bucket);
}

bool ReleasedValues::start_next() {
  const std::lock_guard lock(mutex_);
  const auto next = std::find_if(states_.begin(), states_.end(), [](const State& state) {
    return state.own.defined() && !state.is_for_forward;
  });
  if (next == states_.end()) {
    return false;
  }
  start_fetch(static_cast<size_t>(next - states_.begin()));
  return true;
}

void ReleasedValues::start_all() {
  while (start_next()) {
  }
}

bool ReleasedValues::start_next_for_forward() {
  const auto next = std::find_if(states_.rbegin(), states_.rend(), [](const State& state) {
    return state.own.defined() && state.is_for_forward;
  });
  if (next == states_.rend()) {
    return false;
  }
  start_fetch(static_cast<size_t>(states_.rend() - next) - 1);
  return true;
}

void ReleasedValues::begin_forward(bool is_training) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!part_.join, "release_parameters cannot be used within join()");
  if (pass_ == Pass::kForward) {
    finish_forward();
    release_all();
    pass_ = Pass::kBackward;
  }
  if (pass_ == Pass::kBackward) {
    finish_backward();
    if (part_.on_reduced) {  // other ranks may have come further, and stepped
      for (size_t b = 0; b < states_.size(); ++b) {
        keep_away(b);
      }
    }
  }
  const bool is_releasing = is_training && at::GradMode::is_enabled();
  if (!is_releasing) {
    finish_forward();
  }
  pass_ = is_releasing ? Pass::kForward : Pass::kNone;
  bool has_copies = false;
  for (size_t b = 0; b < states_.size(); ++b) {
    states_[b].left = states_[b].uses;
    has_copies = has_copies || part_.has_copy(b);
  }
  if (part_.on_reduced && has_copies) {
    part_.follow_parameters();
  }
}

/// Gathers what no block of this rank has asked for.
void ReleasedValues::finish_forward() {
  while (start_next_for_forward()) {
  }
  for (size_t b = states_.size(); b-- > 0;) {
    if (states_[b].is_for_forward) {
      wait(b);
    }
  }
}

void ReleasedValues::before_block(size_t block) {
  const std::lock_guard lock(mutex_);
  if (is_in_backward()) {
    before_backward_of(block);  // it runs again, for its activations
    return;
  }
  const auto& buckets = buckets_of(block);
  for (auto b = buckets.rbegin(); b != buckets.rend(); ++b) {
    bring_back(*b);
  }
  start_next_for_forward();
}

void ReleasedValues::after_block(size_t block) {
  const std::lock_guard lock(mutex_);
  if (is_in_backward() || pass_ != Pass::kForward) {
    return;
  }
  for (const size_t b : buckets_of(block)) {
    if (--states_[b].left <= 0) {
      release(b);
    }
  }
}

void ReleasedValues::end_forward(bool releases) {
  const std::lock_guard lock(mutex_);
  if (pass_ != Pass::kForward) {
    return;
  }
  finish_forward();
  if (releases) {
    release_all();
  }
  pass_ = releases ? Pass::kBackward : Pass::kNone;
}

void ReleasedValues::before_backward_of(size_t block) {
  const std::lock_guard lock(mutex_);
  if (!is_any_away()) {
    return;
  }
  if (!std::exchange(awaits_end_of_backward_, true)) {
    torch::autograd::Engine::get_default_engine().queue_callback([self = weak_from_this()] {
      if (const auto values = self.lock()) {
        const std::lock_guard lock(values->mutex_);
        values->finish_backward();
      }
    });
  }
  for (const size_t b : buckets_of(block)) {
    if (!states_[b].is_for_forward) {
      bring_back(b);
    }
  }
  start_next();
}

void ReleasedValues::finish_backward() {
  awaits_end_of_backward_ = false;
  pass_ = Pass::kNone;
  start_all();
  for (size_t b = 0; b < states_.size(); ++b) {
    if (!states_[b].is_for_forward) {
      wait(b);
    }
  }
}

}  // namespace fairshard::shard

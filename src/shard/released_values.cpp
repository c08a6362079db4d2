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

}  // namespace

ReleasedValues::ReleasedValues(FlatParameters& part, bool gather_in_forward)
    : part_(part), group_(part.group().duplicate()), gathers_in_forward_(gather_in_forward) {
  follow_plan();
}

void ReleasedValues::set_blocks(std::vector<std::vector<size_t>> blocks) {
  const std::lock_guard lock(mutex_);
  gather_rest_for_forward();
  blocks_ = std::move(blocks);
  follow_plan();
}

void ReleasedValues::follow_plan() {
  TORCH_INTERNAL_ASSERT(!is_any_away());
  const auto& plan = part_.plan();
  const size_t count = plan.buckets().size();
  states_ = std::vector<State>(count);
  stand_ins_.resize(part_.parameters().size());
  buckets_of_.clear();
  forward_order_.clear();
  std::vector<bool> is_used(part_.parameters().size());
  for (const auto& block : blocks_) {
    std::set<size_t> buckets;
    for (const size_t parameter : block) {
      is_used[parameter] = true;
      buckets.insert(plan.bucket_of(parameter));
    }
    // Against the order of gradients, as that is how layers run.
    for (auto b = buckets.rbegin(); b != buckets.rend(); ++b) {
      if (states_[*b].uses++ == 0) {
        forward_order_.push_back(*b);
      }
    }
    buckets_of_.emplace_back(buckets.rbegin(), buckets.rend());
  }
  for (size_t i = 0; i < is_used.size(); ++i) {
    if (!is_used[i]) {
      states_[plan.bucket_of(i)].uses = 0;
    }
  }
}

/// Of a block that is not known yet nothing is ever away.
const std::vector<size_t>& ReleasedValues::buckets_of(size_t block) const {
  static const std::vector<size_t> none;
  return block < buckets_of_.size() ? buckets_of_[block] : none;
}

bool ReleasedValues::is_any_away() const {
  return std::any_of(states_.begin(), states_.end(),
                     [](const State& state) { return state.where != Where::kHere; });
}

bool ReleasedValues::is_trained(size_t bucket) const {
  const auto& slots = part_.plan().buckets()[bucket].slots;
  return std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
    return part_.parameters()[slot.parameter].tensor.requires_grad();
  });
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

void ReleasedValues::check_not_replaced(size_t bucket) const {
  for (const Slot& slot : part_.plan().buckets()[bucket].slots) {
    const auto& [name, tensor, group] = part_.parameters()[slot.parameter];
    const at::Tensor& expected = stand_ins_[slot.parameter];
    TORCH_CHECK(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl() ==
                    expected.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl(),
                "parameter '", name,
                "' was given other data while it had no values (release_parameters): call "
                "wait_for_parameters() on all ranks before");
  }
}

// One bucket at a time.

void ReleasedValues::release(size_t bucket) {
  State& state = states_[bucket];
  if (state.where != Where::kHere || !is_releasable(bucket)) {
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
  state.where = Where::kAwayForBackward;
}

void ReleasedValues::start(size_t bucket) {
  const at::NoGradGuard no_grad;
  State& state = states_[bucket];
  const at::Tensor& flat = part_.bucket(bucket);
  reallocate(flat, static_cast<int64_t>(flat.nbytes()));
  part_.own_range(bucket).copy_(state.own);
  state.fetch = comm::all_gather(group_, flat, part_.own_range(bucket),
                                 c10::str("released parameters of bucket ", bucket),
                                 part_.plan().buckets()[bucket].bounds);
  state.own.reset();
  state.where = Where::kComing;
}

void ReleasedValues::wait(size_t bucket) {
  State& state = states_[bucket];
  if (state.where != Where::kComing) {
    return;
  }
  state.fetch.wait();
  check_not_replaced(bucket);
  state.fetch = {};
  state.where = Where::kHere;
  for (const Slot& slot : part_.plan().buckets()[bucket].slots) {
    at::Tensor tensor = part_.parameters()[slot.parameter].tensor;
    tensor.set_data(part_.view_of(slot.parameter, part_.bucket(bucket)));
  }
}

bool ReleasedValues::keep_away(size_t bucket) {
  const std::lock_guard lock(mutex_);
  // Who has exact copies gathers what they round to.
  if (!gathers_in_forward_ || !is_releasable(bucket) || part_.has_copy(bucket)) {
    return false;
  }
  release(bucket);
  states_[bucket].where = Where::kAwayForForward;
  for (const Slot& slot : part_.plan().buckets()[bucket].slots) {
    // Has autograd refuse to go on with an old graph, whose values are gone.
    part_.parameters()[slot.parameter].tensor.unsafeGetTensorImpl()->bump_version();
  }
  return true;
}

// In the order of the passes.

bool ReleasedValues::start_next() {
  const std::lock_guard lock(mutex_);
  const auto next = std::find_if(states_.begin(), states_.end(), [](const State& state) {
    return state.where == Where::kAwayForBackward;
  });
  if (next == states_.end()) {
    return false;
  }
  start(static_cast<size_t>(next - states_.begin()));
  return true;
}

void ReleasedValues::start_all() {
  while (start_next()) {
  }
}

bool ReleasedValues::start_next_for_forward() {
  const auto next = std::find_if(forward_order_.begin(), forward_order_.end(), [&](size_t bucket) {
    return states_[bucket].where == Where::kAwayForForward;
  });
  if (next == forward_order_.end()) {
    return false;
  }
  start(*next);
  return true;
}

void ReleasedValues::start_up_to(size_t bucket) {
  const State& state = states_[bucket];
  while (state.where == Where::kAwayForForward) {
    start_next_for_forward();
  }
  while (state.where == Where::kAwayForBackward) {
    start_next();
  }
}

void ReleasedValues::gather_rest_for_forward() {
  while (start_next_for_forward()) {
  }
  wait_for_all_coming();
}

void ReleasedValues::wait_for_all_coming() {
  for (size_t b = 0; b < states_.size(); ++b) {
    wait(b);
  }
}

void ReleasedValues::release_all() {
  for (size_t b = 0; b < states_.size(); ++b) {
    release(b);
  }
}

/// Does what ranks that came to the end of this forward have done.
void ReleasedValues::make_good_forward() {
  if (pass_ == Pass::kForward) {
    gather_rest_for_forward();
    release_all();
    pass_ = Pass::kBackward;
  }
}

void ReleasedValues::bring_back(size_t bucket) {
  const std::lock_guard lock(mutex_);
  if (is_away(bucket)) {
    make_good_forward();
    start_up_to(bucket);
    wait(bucket);
  }
}

void ReleasedValues::bring_back_all() {
  const std::lock_guard lock(mutex_);
  if (is_any_away()) {
    make_good_forward();
    gather_rest_for_forward();
    start_all();
    wait_for_all_coming();
  }
}

// What the model does.

void ReleasedValues::begin_forward(bool is_training, bool by_block) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!part_.join, "release_parameters cannot be used within join()");
  make_good_forward();
  if (pass_ == Pass::kBackward) {
    end_backward();
    for (size_t b = 0; b < states_.size(); ++b) {
      if (part_.on_reduced && is_trained(b)) {
        keep_away(b);  // as ranks that came to the end of this backward have done
      }
    }
  }
  const bool is_releasing = is_training && at::GradMode::is_enabled();
  if (!is_releasing || !by_block) {
    gather_rest_for_forward();
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

void ReleasedValues::start_block(size_t block) {
  const std::lock_guard lock(mutex_);
  if (is_in_backward()) {
    call_when_backward_ends();
    for (const size_t b : buckets_of(block)) {
      // What was stepped is needed no more, though the gradient of one more output has come.
      if (states_[b].where == Where::kAwayForBackward) {
        start_up_to(b);
      }
    }
    start_next();
    return;
  }
  for (const size_t b : buckets_of(block)) {
    if (pass_ == Pass::kForward && states_[b].where == Where::kAwayForBackward) {
      // It runs again. Ranks that have left out other blocks have yet to gather theirs.
      while (start_next_for_forward()) {
      }
      start(b);
      states_[b].uses += 1;
    }
    start_up_to(b);
  }
  start_next_for_forward();
}

void ReleasedValues::wait_for_block(size_t block) {
  const std::lock_guard lock(mutex_);
  for (const size_t b : buckets_of(block)) {
    wait(b);
  }
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
  if (releases) {
    make_good_forward();
  } else if (pass_ == Pass::kForward) {
    gather_rest_for_forward();
    pass_ = Pass::kNone;
  }
}

void ReleasedValues::call_when_backward_ends() {
  if (pass_ != Pass::kBackward || std::exchange(awaits_end_of_backward_, true)) {
    return;
  }
  torch::autograd::Engine::get_default_engine().queue_callback([self = weak_from_this()] {
    if (const auto values = self.lock()) {
      values->end_backward();
    }
  });
}

void ReleasedValues::end_backward() {
  const std::lock_guard lock(mutex_);
  awaits_end_of_backward_ = false;
  pass_ = Pass::kNone;
  start_all();
  wait_for_all_coming();
}

}  // namespace fairshard::shard

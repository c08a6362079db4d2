#include "arriving_values.h"
#include "flat_memory.h"
#include <fairshard/comm/collectives.h>
#include <fairshard/comm/profiler_range.h>
#include <fairshard/shard/flat_bucket.h>
#include <fairshard/shard/master_weights.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fairshard::shard {
namespace {

bool is_narrower(at::ScalarType a, at::ScalarType b) {
  return c10::elementSize(a) < c10::elementSize(b);
}

c10::StorageImpl& storage_of(const at::Tensor& tensor) {
  return *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

/// Gives a tensor's storage other memory, which all tensors on that storage then have.
void reallocate(const at::Tensor& tensor, size_t bytes) {
  const c10::OptionalDeviceGuard guard(tensor.device());
  c10::StorageImpl& storage = storage_of(tensor);
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
}

/// A tensor like the parameter that throws when its values are asked for.
at::Tensor make_placeholder(const Parameter& parameter) {
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

/// Gives a parameter back the strides that it had. States and master weights have its elements in
/// that order, and other ranks have some of them.
void keep_strides(const Parameter& parameter, const at::Tensor& before) {
  at::Tensor tensor = parameter.tensor;
  if (tensor.sizes() != before.sizes() || tensor.strides() == before.strides()) {
    return;
  }
  TORCH_WARN_ONCE("parameter '", parameter.name, "' was given strides ", tensor.strides(),
                  " after it had been sharded, and keeps ", before.strides(),
                  ": change the memory format before the optimizer is made");
  tensor.set_data(
      at::empty_strided(before.sizes(), before.strides(), tensor.options()).copy_(tensor));
}

/// Memory within that of `owner`, which stays alive with it.
c10::DataPtr borrow(const c10::Storage& owner, void* start) {
  return {start, new c10::Storage(owner),
          [](void* kept) { delete static_cast<c10::Storage*>(kept); }, owner.device()};
}

}  // namespace

at::Tensor view_of(const Parameter& parameter, const Slot& slot, const at::Tensor& flat) {
  // Below autograd, so that it does not count as a view there: .grad may become one of these, and
  // zero_grad would refuse to detach a view in place.
  const at::AutoDispatchBelowADInplaceOrView guard;
  return flat.as_strided(parameter.tensor.sizes(), parameter.tensor.strides(),
                         flat.storage_offset() + slot.offset);
}

FlatBucket::FlatBucket(std::shared_ptr<const ShardLayout> layout, size_t index, int rank,
                       std::shared_ptr<const std::vector<Parameter>> parameters,
                       const Precision& precision)
    : layout_(std::move(layout)),
      index_(index),
      rank_(rank),
      parameters_(std::move(parameters)),
      precision_(precision),
      own_pieces_(layout_->pieces(rank, index)),
      arriving_(std::make_shared<ArrivingValues>()) {
  bind();
}

at::Tensor FlatBucket::shard_of(const at::Tensor& flat) const {
  return flat.narrow(0, layout_->range_begin(index_, rank_), layout_->range_length(index_, rank_));
}

bool FlatBucket::is_trainable() const {
  const auto& slots = layout().slots;
  return std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) {
    const at::Tensor& tensor = (*parameters_)[slot.parameter].tensor;
    return tensor.requires_grad() || tensor.grad().defined();
  });
}

// Where parameters lie.

void FlatBucket::bind() {
  const at::NoGradGuard no_grad;
  wait();
  const auto& slots = layout().slots;
  const at::Tensor& first = parameter(0).tensor;
  flat_ = empty_flat(layout().length(), at::device(first.device()).dtype(first.scalar_type()));
  flat_.zero_();
  placeholders_.assign(slots.size(), at::Tensor());
  awaited_.clear();
  versions_.assign(slots.size(), -1);
  const auto before = std::exchange(places_, {});
  for (size_t i = 0; i < slots.size(); ++i) {
    at::Tensor tensor = parameter(i).tensor;
    if (!before.empty()) {
      keep_strides(parameter(i), before[i]);
    }
    places_.push_back(make_place(i));
    places_.back().copy_(tensor);
    tensor.set_data(places_.back());  // what it had before is freed now, and not all at the end
  }
  if (!needs_master()) {
    master_.reset();
  } else if (!has_master()) {
    const auto dtype = flat_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    master_ = shard().to(dtype, /*non_blocking=*/false, /*copy=*/true);
  } else if (master_.device() != flat_.device()) {
    master_ = master_.to(flat_.device());
  }
}

at::Tensor FlatBucket::make_place(size_t slot) const {
  const at::Tensor& like = parameter(slot).tensor;
  auto* const start = static_cast<char*>(flat_.mutable_data_ptr()) +
                      layout().slots[slot].offset * flat_.element_size();
  c10::Storage storage(c10::Storage::use_byte_size_t(), like.nbytes(),
                       borrow(flat_.storage(), start), flat_.storage().allocator(),
                       /*resizable=*/false);
  return at::empty({0}, flat_.options()).set_(storage, 0, like.sizes(), like.strides());
}

/// Also what autograd has saved of the parameters is on these storages.
void FlatBucket::point_places_at(const void* start) {
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto offset = layout().slots[i].offset * flat_.element_size();
    storage_of(places_[i])
        .set_data_ptr_noswap(
            start ? borrow(flat_.storage(),
                           const_cast<char*>(static_cast<const char*>(start)) + offset)
                  : c10::DataPtr(nullptr, flat_.device()));
  }
}

bool FlatBucket::are_placed() const { return storage_of(places_.front()).data() != nullptr; }

bool FlatBucket::is_bound() const {
  if (!are_placed()) {
    check_not_replaced();
    return true;
  }
  const auto* const start = static_cast<const char*>(flat_.const_data_ptr());
  bool is_bound = true;
  for (size_t i = 0; i < places_.size(); ++i) {
    const Slot& slot = layout().slots[i];
    if (!is_awaited(i) &&
        parameter(i).tensor.const_data_ptr() != start + slot.offset * flat_.element_size()) {
      check_fits(parameter(i), slot);
      is_bound = false;
    }
  }
  return is_bound;
}

void FlatBucket::check_fits(const Parameter& replaced, const Slot& slot) const {
  const at::Tensor& tensor = replaced.tensor;
  const Parameter& first = parameter(0);
  TORCH_CHECK(tensor.numel() == slot.numel && tensor.is_non_overlapping_and_dense() &&
                  tensor.is_floating_point(),
              "parameter '", replaced.name, "' was replaced by ", tensor.scalar_type(),
              tensor.sizes(), " after it had been sharded with ", slot.numel, " elements");
  TORCH_CHECK(tensor.device() == first.tensor.device(), "parameter '", replaced.name,
              "' was moved to ", tensor.device(), " after it had been sharded, but '", first.name,
              "', which shares a bucket with it, is on ", first.tensor.device(),
              ": move all parameters alike");
  TORCH_CHECK(tensor.scalar_type() == first.tensor.scalar_type(), "parameter '", replaced.name,
              "' is ", tensor.scalar_type(), " now, but '", first.name,
              "', which shares a bucket with it, is ", first.tensor.scalar_type(),
              ": change the dtype of all parameters alike");
}

// Note [States of a bucket].

const at::Tensor& FlatBucket::placeholder(size_t slot) {
  const at::Tensor& like = parameter(slot).tensor;
  at::Tensor& result = placeholders_[slot];
  if (!result.defined() || result.strides() != like.strides()) {
    result = make_placeholder(parameter(slot));
  }
  return result;
}

void FlatBucket::check_not_replaced() const {
  for (size_t i = 0; i < places_.size(); ++i) {
    TORCH_CHECK(&storage_of(parameter(i).tensor) == &storage_of(placeholders_[i]), "parameter '",
                parameter(i).name,
                "' was given other data while it had no values (release_parameters): call "
                "wait_for_parameters() on all ranks before");
  }
}

void FlatBucket::reshard() {
  const at::NoGradGuard no_grad;
  wait();
  if (state_ == State::kSharded) {
    return;
  }
  own_ = empty_flat(shard().numel(), flat_.options());
  own_.copy_(shard());
  for (size_t i = 0; i < places_.size(); ++i) {
    become(parameter(i).tensor, placeholder(i));
  }
  point_places_at(nullptr);
  reallocate(flat_, 0);
  state_ = State::kSharded;
}

void FlatBucket::start_unshard(const comm::Group& group) {
  const at::NoGradGuard no_grad;
  const std::string label = c10::str("parameters of bucket ", index_);
  const comm::ProfilerRange range([&] { return "gather " + label; });
  const bool was_sharded = state_ == State::kSharded;
  if (was_sharded) {
    reallocate(flat_, flat_.nbytes());
    shard().copy_(std::exchange(own_, at::Tensor()));
  }
  const bool is_narrow = !was_sharded && gather_dtype() != flat_.scalar_type();
  const at::Tensor target =
      is_narrow ? empty_flat(flat_.numel(), flat_.options().dtype(gather_dtype())) : flat_;
  const at::Tensor own = shard_of(target);
  if (has_master() && !was_sharded) {
    own.copy_(master_);
  }
  arriving_->start(comm::all_gather(group, target, own, label, layout().bounds), target, flat_);
  if (!was_sharded) {
    await_values();
  }
  state_ = State::kUnsharding;
}

/// See Note [Reading what is being gathered].
void FlatBucket::await_values() {
  for (size_t i = 0; i < places_.size(); ++i) {
    if (awaited_.size() == i) {
      awaited_.push_back(make_awaited(arriving_, places_[i]));
    }
    become(parameter(i).tensor, awaited_[i]);
  }
}

bool FlatBucket::is_awaited(size_t slot) const {
  return slot < awaited_.size() &&
         &storage_of(parameter(slot).tensor) == &storage_of(awaited_[slot]);
}

void FlatBucket::wait() {
  if (state_ != State::kUnsharding) {
    return;
  }
  const at::NoGradGuard no_grad;
  arriving_->wait();
  const bool was_sharded = !are_placed();
  if (was_sharded) {
    check_not_replaced();
    point_places_at(flat_.const_data_ptr());
  }
  for (size_t i = 0; i < places_.size(); ++i) {
    // Unless it was read meanwhile, or given other data.
    if (was_sharded || is_awaited(i)) {
      become(parameter(i).tensor, places_[i]);
    }
  }
  state_ = State::kUnsharded;
}

comm::Work FlatBucket::work() const { return arriving_->work(); }

// Precision.

at::ScalarType FlatBucket::gather_dtype() const {
  const auto& wanted = precision_.gather_dtype;
  return wanted && is_narrower(*wanted, flat_.scalar_type()) ? *wanted : flat_.scalar_type();
}

bool FlatBucket::needs_master() const {
  return (precision_.master_weights && is_narrower(flat_.scalar_type(), at::kFloat)) ||
         gather_dtype() != flat_.scalar_type();
}

void FlatBucket::mark_stepped() {
  for (size_t i = 0; i < places_.size(); ++i) {
    const at::Tensor& tensor = parameter(i).tensor;
    if (tensor.requires_grad()) {
      tensor.unsafeGetTensorImpl()->bump_version();
      versions_[i] = tensor._version();
    }
  }
}

void FlatBucket::update_master() {
  if (!has_master()) {
    return;
  }
  const at::NoGradGuard no_grad;
  for (const Piece& piece : own_pieces_) {
    const auto slot = layout_->slot_number_of(piece.parameter);
    const int64_t version = parameter(slot).tensor._version();
    if (std::exchange(versions_[slot], version) != version) {
      const auto part = [&](const at::Tensor& range) {
        return range.narrow(0, piece.offset, piece.numel());
      };
      follow_writes(part(master_), part(shard()), gather_dtype());
    }
  }
}

}  // namespace fairshard::shard

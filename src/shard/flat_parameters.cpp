#include <fairshard/shard/agree.h>
#include <fairshard/shard/exact_copy.h>
#include <fairshard/shard/flat_parameters.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

namespace fairshard::shard {
namespace {

/// The parameters that can be laid out, each once.
std::vector<Parameter> select(const std::vector<Parameter>& parameters) {
  std::vector<Parameter> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    TORCH_CHECK_VALUE(tensor.defined(), "parameter '", parameter.name, "' is undefined");
    if (!tensor.is_floating_point() || tensor.numel() == 0 ||
        !seen.insert(tensor.unsafeGetTensorImpl()).second) {
      continue;
    }
    TORCH_CHECK_VALUE(tensor.is_leaf(), "parameter '", parameter.name, "' is not a leaf");
    TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, "parameter '", parameter.name, "' is ",
                     tensor.layout(), ", but must be dense");
    TORCH_CHECK_VALUE(tensor.is_non_overlapping_and_dense(), "parameter '", parameter.name,
                      "' of sizes ", tensor.sizes(), " and strides ", tensor.strides(),
                      " has gaps or overlaps in memory");
    result.push_back(parameter);
  }
  return result;
}

/// Whether two plans differ at most in the order of parameters within their buckets.
bool have_same_members(const ShardPlan& a, const ShardPlan& b) {
  const auto members = [](const Bucket& bucket) {
    std::set<size_t> result;
    for (const Slot& slot : bucket.slots) {
      result.insert(slot.parameter);
    }
    return result;
  };
  return std::equal(a.buckets().begin(), a.buckets().end(), b.buckets().begin(), b.buckets().end(),
                    [&](const Bucket& x, const Bucket& y) { return members(x) == members(y); });
}

/// Who releases values wants the least memory.
FlatOptions completed(FlatOptions options) {
  options.plan(PlanOptions(options.plan()).least_memory(options.release_values()));
  return options;
}

bool is_narrower(at::ScalarType a, at::ScalarType b) {
  return c10::elementSize(a) < c10::elementSize(b);
}

}  // namespace

FlatParameters::FlatParameters(comm::Group group, const std::vector<Parameter>& parameters,
                               const FlatOptions& options)
    : group_(std::move(group)),
      options_(completed(options)),
      parameters_((check_same_parameters(group_, parameters), select(parameters))),
      plan_(parameters_, group_.size(), options_.plan()),
      gradients_(*this),
      versions_(parameters_.size(), -1) {
  allocate();
  if (options.release_values()) {
    released_ = std::make_shared<ReleasedValues>(*this, options.gather_in_forward());
  }
}

/// Moves the parameters to where the plan has them.
void FlatParameters::allocate() {
  const at::NoGradGuard no_grad;
  const size_t count = plan_.buckets().size();
  gathers_ = std::vector<std::optional<Gather>>(count);
  // What was there before is freed as soon as its last parameter has left it.
  buckets_.assign(count, at::Tensor());
  copies_.assign(count, at::Tensor());
  for (size_t b = 0; b < count; ++b) {
    adopt_bucket(b);
  }
  make_slices();
}

void FlatParameters::adopt_bucket(size_t b) {
  const Bucket& bucket = plan_.buckets()[b];
  const at::ScalarType dtype = parameters_[bucket.slots.front().parameter].tensor.scalar_type();
  const auto options = at::TensorOptions(bucket.device).dtype(dtype);
  const at::Tensor flat = at::zeros({bucket.length()}, options);
  for (const Slot& slot : bucket.slots) {
    at::Tensor& tensor = parameters_[slot.parameter].tensor;
    const at::Tensor view = view_of(slot.parameter, flat);
    view.copy_(tensor);
    tensor.set_data(view);
    versions_[slot.parameter] = -1;
  }
  buckets_[b] = flat;
  if (!needs_copy(b)) {
    copies_[b].reset();
  } else if (!copies_[b].defined()) {
    copies_[b] = own_range(b).to(dtype == at::kDouble ? dtype : at::kFloat, false, /*copy=*/true);
  }
}

bool FlatParameters::needs_copy(size_t bucket) const {
  const at::ScalarType dtype = buckets_[bucket].scalar_type();
  return (options_.master_weights() && is_narrower(dtype, at::kFloat)) ||
         gather_dtype(bucket) != dtype;
}

void FlatParameters::make_slices() {
  slices_ = slices_of(group_.rank());
  for (Slice& slice : slices_) {
    const at::Tensor& copy = copies_[slice.piece.bucket];
    if (copy.defined()) {
      const at::Tensor part = copy.narrow(0, slice.piece.offset, slice.piece.numel());
      slice.values = part.as_strided(slice.values.sizes(), slice.values.strides()).detach();
    }
  }
}

std::vector<Slice> FlatParameters::slices_of(int rank) const {
  std::vector<Slice> result;
  for (const Piece& piece : plan_.pieces(rank)) {
    const bool is_whole = options_.plan().partition() == Partition::kTensor;
    const int64_t start = plan_.range_begin(piece.bucket, rank) + piece.offset;
    const at::Tensor values = is_whole ? view_of(piece.parameter, buckets_[piece.bucket])
                                       : buckets_[piece.bucket].narrow(0, start, piece.numel());
    result.push_back({piece, values.detach()});
  }
  return result;
}

at::Tensor FlatParameters::own_range_of(size_t bucket, const at::Tensor& flat) const {
  const int rank = group_.rank();
  return flat.narrow(0, plan_.range_begin(bucket, rank), plan_.range_length(bucket, rank));
}

at::Tensor FlatParameters::own_range(size_t bucket) const {
  return own_range_of(bucket, buckets_[bucket]);
}

at::TensorOptions FlatParameters::stepped_options(size_t bucket) const {
  return (copies_[bucket].defined() ? copies_[bucket] : buckets_[bucket]).options();
}

at::Tensor FlatParameters::view_of(size_t parameter, const at::Tensor& flat) const {
  const at::Tensor& tensor = parameters_[parameter].tensor;
  // Below autograd, so that it does not count as a view there: .grad may become one of these, and
  // zero_grad would refuse to detach a view in place.
  const at::AutoDispatchBelowADInplaceOrView guard;
  return flat.as_strided(tensor.sizes(), tensor.strides(),
                         flat.storage_offset() + plan_.slot_of(parameter).offset);
}

void FlatParameters::adopt_replaced() {
  const at::NoGradGuard no_grad;
  bool has_changed = false;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (released_ && released_->is_away(b)) {
      released_->check_not_replaced(b);
      continue;
    }
    const Bucket& bucket = plan_.buckets()[b];
    const auto* const start = static_cast<const char*>(buckets_[b].const_data_ptr());
    const size_t element = buckets_[b].element_size();
    const Parameter& first = parameters_[bucket.slots.front().parameter];
    bool is_in_place = true;
    for (const Slot& slot : bucket.slots) {
      const Parameter& parameter = parameters_[slot.parameter];
      const at::Tensor& tensor = parameter.tensor;
      is_in_place &= tensor.const_data_ptr() == start + slot.offset * element;
      TORCH_CHECK(tensor.device() == bucket.device, "parameter '", parameter.name,
                  "' was moved to ", tensor.device(), " after it had been sharded on ",
                  bucket.device, ": move the module before the OSS is made");
      TORCH_CHECK(tensor.numel() == slot.numel && tensor.is_non_overlapping_and_dense() &&
                      tensor.is_floating_point(),
                  "parameter '", parameter.name, "' was replaced by ", tensor.scalar_type(),
                  tensor.sizes(), " after it had been sharded with ", slot.numel, " elements");
      TORCH_CHECK(tensor.scalar_type() == first.tensor.scalar_type(), "parameter '", parameter.name,
                  "' is ", tensor.scalar_type(), " now, but '", first.name,
                  "', which shares a bucket with it, is ", first.tensor.scalar_type(),
                  ": change the dtype of all parameters alike");
    }
    if (!is_in_place) {
      wait_for_bucket(b);
      adopt_bucket(b);
      gradients_.follow_dtype(b);
      has_changed = true;
    }
  }
  if (has_changed) {
    // The same tensors stay known to the optimizer.
    const auto old = std::exchange(slices_, {});
    make_slices();
    for (size_t i = 0; i < old.size(); ++i) {
      at::Tensor values = old[i].values;
      values.set_data(slices_[i].values);
      slices_[i].values = values;
    }
    ++revision_;
  }
}

void FlatParameters::reorder(const std::vector<size_t>& order) {
  TORCH_INTERNAL_ASSERT(!is_settled_);
  const at::NoGradGuard no_grad;
  ShardPlan new_plan(parameters_, group_.size(), options_.plan(), order);
  if (have_same_members(plan_, new_plan)) {
    return;
  }
  wait_for_values();
  const ShardPlan old_plan = std::exchange(plan_, std::move(new_plan));
  // The optimizer holds these, too, until it sees the new ones. All of the old memory would stay
  // with them, beside the new.
  for (const Slice& slice : slices_) {
    slice.values.set_data(at::empty({0}, slice.values.options()));
  }
  allocate();
  gradients_.follow_plan(old_plan);
  if (released_) {
    released_->follow_plan();
  }
  ++revision_;
}

at::ScalarType FlatParameters::gather_dtype(size_t bucket) const {
  const at::ScalarType own = buckets_[bucket].scalar_type();
  const auto& wanted = options_.gather_dtype();
  return wanted && is_narrower(*wanted, own) ? *wanted : own;
}

void FlatParameters::before_step() {
  TORCH_CHECK(
      gradients_.scaled_by == 0,
      "the gradients are those of a scaled loss, and still scaled: call scaler.step(optimizer) "
      "instead of optimizer.step()");
  follow_parameters();
}

void FlatParameters::follow_parameters() {
  const at::NoGradGuard no_grad;
  wait_for_values();
  adopt_replaced();
  for (const Slice& slice : slices_) {
    const size_t b = slice.piece.bucket;
    if (copies_[b].defined() && has_changed(slice.piece.parameter)) {
      const auto part = [&](const at::Tensor& range) {
        return range.narrow(0, slice.piece.offset, slice.piece.numel());
      };
      follow_rounded(part(copies_[b]), part(own_range(b)), gather_dtype(b));
    }
  }
}

void FlatParameters::publish_copies() {
  for (const at::Tensor& copy : copies_) {
    if (copy.defined()) {
      start_gather();
      wait_for_values();
      return;
    }
  }
}

/// Whether somebody has written to a parameter since this was last asked.
bool FlatParameters::has_changed(size_t parameter) {
  const int64_t version = parameters_[parameter].tensor._version();
  return std::exchange(versions_[parameter], version) != version;
}

void FlatParameters::start_gather() {
  const at::NoGradGuard no_grad;
  wait_for_values();
  // The last buckets hold the first layers, which the next forward needs first.
  for (size_t b = buckets_.size(); b-- > 0;) {
    gather_bucket(b);
  }
}

void FlatParameters::gather_bucket(size_t b) {
  if (released_ && released_->keep_away(b)) {
    return;
  }
  const auto dtype = gather_dtype(b);
  const bool is_narrow = dtype != buckets_[b].scalar_type();
  const at::Tensor target =
      is_narrow ? at::empty(buckets_[b].sizes(), buckets_[b].options().dtype(dtype)) : buckets_[b];
  const at::Tensor own = own_range_of(b, target);
  if (copies_[b].defined()) {
    own.copy_(copies_[b]);
  }
  auto work = comm::all_gather(group_, target, own, c10::str("parameters of bucket ", b),
                               plan_.buckets()[b].bounds);
  gathers_[b] = Gather{std::move(work), is_narrow ? target : at::Tensor()};
}

void FlatParameters::step_bucket(size_t bucket) {
  const at::NoGradGuard no_grad;
  wait_for_bucket(bucket);
  on_reduced(bucket);
  was_stepped_ = true;
  settle();
  gradients_.drop(bucket);
  for (const Slot& slot : plan_.buckets()[bucket].slots) {
    // If backward still needs the old values (of a parameter that was also used detached, say),
    // autograd refuses to go on.
    parameters_[slot.parameter].tensor.unsafeGetTensorImpl()->bump_version();
    has_changed(slot.parameter);
  }
  gather_bucket(bucket);
}

void FlatParameters::step_all_buckets() {
  before_step();
  for (size_t b = buckets_.size(); b-- > 0;) {
    step_bucket(b);
  }
  was_stepped_ = false;
}

void FlatParameters::wait_for_bucket(size_t bucket) {
  if (released_) {
    released_->bring_back(bucket);
  }
  if (auto gather = std::exchange(gathers_[bucket], std::nullopt)) {
    gather->work.wait();
    if (gather->narrow.defined()) {
      const at::NoGradGuard no_grad;
      buckets_[bucket].copy_(gather->narrow);
    }
  }
}

void FlatParameters::wait_for_values() {
  if (released_) {
    released_->bring_back_all();
  }
  // In the order in which they were started.
  for (size_t b = gathers_.size(); b-- > 0;) {
    wait_for_bucket(b);
  }
}

void FlatParameters::wait_for_value(size_t parameter) {
  wait_for_bucket(plan_.bucket_of(parameter));
}

void FlatParameters::broadcast(int root) {
  wait_for_values();
  std::vector<comm::Work> works;
  works.reserve(buckets_.size());
  for (size_t i = 0; i < buckets_.size(); ++i) {
    works.push_back(
        comm::broadcast(group_, buckets_[i], root, c10::str("parameters of bucket ", i)));
  }
  for (auto& work : works) {
    work.wait();
  }
}

}  // namespace fairshard::shard

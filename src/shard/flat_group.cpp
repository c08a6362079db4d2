#include <fairshard/comm/collectives.h>
#include <fairshard/shard/flat_group.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

namespace fairshard::shard {
namespace {

/// The parameters that can be laid out, each once.
std::shared_ptr<std::vector<Parameter>> select(const std::vector<Parameter>& parameters) {
  auto result = std::make_shared<std::vector<Parameter>>();
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    TORCH_CHECK_VALUE(tensor.defined(), "parameter '", parameter.name, "' is undefined");
    TORCH_CHECK_TYPE(!tensor.is_complex() || !tensor.requires_grad(), "parameter '", parameter.name,
                     "' is ", tensor.scalar_type(),
                     ", but only real parameters can be sharded: keep it as torch.view_as_real()");
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
    result->push_back(parameter);
  }
  return result;
}

/// Whether two layouts differ at most in the order of parameters within their buckets.
bool have_same_members(const ShardLayout& a, const ShardLayout& b) {
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

/// Checks the options. Resharding is for the least memory.
FlatOptions completed(FlatOptions options) {
  const auto& gather_dtype = options.precision().gather_dtype;
  TORCH_CHECK_VALUE(!gather_dtype || at::isFloatingType(*gather_dtype), "gather_dtype is ",
                    *gather_dtype, ", but parameters travel as floating point numbers only");
  options.layout().least_memory(options.reshard_after_forward());
  return options;
}

}  // namespace

FlatGroup::FlatGroup(comm::Mesh mesh, const std::vector<Parameter>& parameters,
                     const FlatOptions& options)
    : mesh_(std::move(mesh)),
      options_(completed(options)),
      parameters_(select(parameters)),
      layout_(std::make_shared<ShardLayout>(*parameters_, group().size(), options_.layout())),
      gradients_(std::make_shared<GradientShards>(group(), layout_, parameters_,
                                                  options_.step_in_backward())) {
  allocate();
  for (size_t b = 0; b < buckets_.size(); ++b) {
    gradients_->set_options(b, buckets_[b].stepped_options());
  }
  if (options_.reshard_after_forward()) {
    schedule_ = std::make_shared<UnshardSchedule>(
        group(), buckets_, layout_,
        UnshardOptions{.reshard_after_step = options_.reshard_after_step(),
                       .step_in_backward = options_.step_in_backward()});
  }
}

/// Moves the parameters to where the layout has them.
void FlatGroup::allocate() {
  const size_t count = layout_->buckets().size();
  buckets_.clear();
  buckets_.reserve(count);
  for (size_t b = 0; b < count; ++b) {
    buckets_.emplace_back(layout_, b, group().rank(), parameters_, options_.precision());
  }
  make_slices();
}

void FlatGroup::make_slices() {
  slices_ = slices_of(group().rank());
  for (Slice& slice : slices_) {
    const at::Tensor& master = buckets_[slice.piece.bucket].master();
    if (master.defined()) {
      const at::Tensor part = master.narrow(0, slice.piece.offset, slice.piece.numel());
      slice.values = part.as_strided(slice.values.sizes(), slice.values.strides()).detach();
    }
  }
}

std::vector<Slice> FlatGroup::slices_of(int rank) const {
  const bool is_whole = options_.layout().partition() == Partition::kTensor;
  std::vector<Slice> result;
  for (const Piece& piece : layout_->pieces(rank)) {
    const at::Tensor& flat = buckets_[piece.bucket].flat();
    const Slot& slot = layout_->slot_of(piece.parameter);
    const at::Tensor values = is_whole ? view_of((*parameters_)[piece.parameter], slot, flat)
                                       : flat.narrow(0, slot.offset + piece.begin, piece.numel());
    result.push_back({piece, values.detach()});
  }
  return result;
}

std::vector<at::TensorOptions> FlatGroup::stepped_options() const {
  std::vector<at::TensorOptions> result;
  result.reserve(buckets_.size());
  for (const FlatBucket& bucket : buckets_) {
    result.push_back(bucket.stepped_options());
  }
  return result;
}

void FlatGroup::rebind() {
  const at::NoGradGuard no_grad;
  bool has_changed = false;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    if (!buckets_[b].is_bound()) {
      buckets_[b].bind();
      gradients_->set_options(b, buckets_[b].stepped_options());
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
    ++layout_version_;
  }
}

void FlatGroup::relayout(const std::vector<size_t>& order) {
  TORCH_INTERNAL_ASSERT(!is_layout_frozen_);
  const at::NoGradGuard no_grad;
  auto layout =
      std::make_shared<const ShardLayout>(*parameters_, group().size(), options_.layout(), order);
  if (have_same_members(*layout_, *layout)) {
    return;
  }
  wait_for_values();
  layout_ = std::move(layout);
  // The optimizer holds these, too, until it sees the new ones. All of the old memory would stay
  // with them, beside the new.
  for (const Slice& slice : slices_) {
    slice.values.set_data(at::empty({0}, slice.values.options()));
  }
  slices_.clear();
  allocate();
  gradients_->relayout(layout_, slices_, stepped_options());
  if (schedule_) {
    schedule_->set_layout(layout_);
  }
  ++layout_version_;
}

void FlatGroup::publish(size_t bucket) {
  buckets_[bucket].mark_stepped();
  if (!schedule_ || !schedule_->reshard_stepped(bucket)) {
    buckets_[bucket].start_unshard(group());
  }
}

void FlatGroup::start_gather() {
  wait_for_values();
  // The last buckets hold the first layers, which the next forward needs first.
  for (size_t b = buckets_.size(); b-- > 0;) {
    publish(b);
  }
}

void FlatGroup::wait_for_bucket(size_t bucket) {
  if (schedule_) {
    schedule_->unshard(bucket);
  } else {
    buckets_[bucket].wait();
  }
}

void FlatGroup::wait_for_values() {
  if (schedule_) {
    schedule_->unshard_all();
  }
  // In the order in which they were started.
  for (size_t b = buckets_.size(); b-- > 0;) {
    buckets_[b].wait();
  }
}

void FlatGroup::update_masters() {
  wait_for_values();
  rebind();
  for (FlatBucket& bucket : buckets_) {
    bucket.update_master();
  }
}

bool FlatGroup::has_masters() const {
  return std::any_of(buckets_.begin(), buckets_.end(),
                     [](const FlatBucket& bucket) { return bucket.has_master(); });
}

void FlatGroup::publish_masters() {
  if (has_masters()) {
    start_gather();
    wait_for_values();
  }
}

void FlatGroup::broadcast(int root) {
  wait_for_values();
  std::vector<comm::Work> works;
  works.reserve(buckets_.size());
  for (size_t b = 0; b < buckets_.size(); ++b) {
    works.push_back(
        comm::broadcast(group(), buckets_[b].flat(), root, c10::str("parameters of bucket ", b)));
  }
  for (auto& work : works) {
    work.wait();
  }
}

}  // namespace fairshard::shard

#include <fairshard/shard/agree.h>
#include <fairshard/shard/flat_parameters.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

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

}  // namespace

FlatParameters::FlatParameters(comm::Group group, const std::vector<Parameter>& parameters,
                               const PlanOptions& options)
    : group_(std::move(group)),
      parameters_((check_same_parameters(group_, parameters), select(parameters))),
      plan_(parameters_, group_.size(), options),
      gradient_ranges_(plan_.buckets().size()),
      is_delivered_(plan_.buckets().size()),
      has_gradient_(parameters_.size()) {
  const at::NoGradGuard no_grad;
  for (const Bucket& bucket : plan_.buckets()) {
    const auto options = at::TensorOptions(bucket.device).dtype(bucket.dtype);
    buckets_.push_back(at::zeros({bucket.length}, options));
    for (const Slot& slot : bucket.slots) {
      at::Tensor& tensor = parameters_[slot.parameter].tensor;
      const at::Tensor view = view_of(slot.parameter, buckets_.back());
      view.copy_(tensor);
      tensor.set_data(view);
    }
  }
  for (const Piece& piece : plan_.pieces(group_.rank())) {
    const int64_t start = group_.rank() * plan_.range_length(piece.bucket) + piece.offset;
    slices_.push_back(
        {piece, buckets_[piece.bucket].narrow(0, start, piece.end - piece.begin).detach()});
  }
}

at::Tensor FlatParameters::view_of(size_t parameter, const at::Tensor& flat) const {
  const Slot& slot = plan_.buckets()[plan_.bucket_of(parameter)].slots[plan_.slot_of(parameter)];
  const at::Tensor& tensor = parameters_[parameter].tensor;
  // Below autograd, so that it does not count as a view there: .grad may become one of these, and
  // zero_grad would refuse to detach a view in place.
  const at::AutoDispatchBelowADInplaceOrView guard;
  return flat.as_strided(tensor.sizes(), tensor.strides(), flat.storage_offset() + slot.offset);
}

at::Tensor FlatParameters::gradient_range(size_t bucket) {
  at::Tensor& range = gradient_ranges_[bucket];
  if (!range.defined()) {
    range = at::empty({plan_.range_length(bucket)}, buckets_[bucket].options());
  }
  return range;
}

bool FlatParameters::has_gradients(size_t bucket) const { return is_delivered_[bucket]; }

void FlatParameters::deliver(size_t bucket, const std::vector<bool>& has_gradient) {
  is_delivered_[bucket] = true;
  for (const Slot& slot : plan_.buckets()[bucket].slots) {
    has_gradient_[slot.parameter] = has_gradient_[slot.parameter] || has_gradient[slot.parameter];
  }
}

void FlatParameters::clear_gradients() {
  is_delivered_.assign(is_delivered_.size(), false);
  has_gradient_.assign(has_gradient_.size(), false);
  is_used_ = false;
}

void FlatParameters::begin_backward() {
  if (is_used_) {
    clear_gradients();
  }
}

at::Tensor FlatParameters::gradient_of(const Slice& slice) const {
  const Piece& piece = slice.piece;
  const int64_t length = piece.end - piece.begin;
  if (is_delivered_[piece.bucket]) {
    return has_gradient_[piece.parameter]
               ? gradient_ranges_[piece.bucket].narrow(0, piece.offset, length)
               : at::Tensor();
  }
  const Parameter& parameter = parameters_[piece.parameter];
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!gradient.defined()) {
    return {};
  }
  TORCH_CHECK_TYPE(gradient.layout() == at::kStrided, "the gradient of parameter '", parameter.name,
                   "' is ", gradient.layout(), ", but only dense gradients can be sharded");
  // A piece counts elements in the parameter's order of memory, so the gradient is taken in that.
  at::Tensor in_order = gradient;
  if (gradient.strides() != parameter.tensor.strides()) {
    in_order = at::empty_strided(gradient.sizes(), parameter.tensor.strides(), gradient.options());
    in_order.copy_(gradient);
  }
  return in_order.as_strided({length}, {1}, in_order.storage_offset() + piece.begin);
}

void FlatParameters::start_gather() {
  wait_for_values();
  // The last buckets hold the first layers, which the next forward needs first.
  for (size_t b = buckets_.size(); b-- > 0;) {
    const int64_t length = plan_.range_length(b);
    gathers_.push_back(comm::all_gather(group_, buckets_[b],
                                        buckets_[b].narrow(0, group_.rank() * length, length),
                                        c10::str("parameters of bucket ", b)));
  }
}

void FlatParameters::wait_for_values() {
  for (auto& work : std::exchange(gathers_, {})) {
    work.wait();
  }
}

void FlatParameters::check_in_place() const {
  for (size_t b = 0; b < buckets_.size(); ++b) {
    const auto* start = static_cast<const char*>(buckets_[b].const_data_ptr());
    for (const Slot& slot : plan_.buckets()[b].slots) {
      const Parameter& parameter = parameters_[slot.parameter];
      const char* expected = start + slot.offset * buckets_[b].element_size();
      TORCH_CHECK(parameter.tensor.const_data_ptr() == expected, "parameter '", parameter.name,
                  "' was moved or replaced after it had been sharded (now ",
                  parameter.tensor.scalar_type(), " on ", parameter.tensor.device(),
                  "): change dtype and device before the OSS is made");
    }
  }
}

void FlatParameters::broadcast(int root) {
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

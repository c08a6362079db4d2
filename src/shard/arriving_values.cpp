#include "arriving_values.h"

#include "wrapper_key.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <utility>

namespace fairshard::shard {
namespace {

/// What the storage of an awaited tensor has in place of memory.
struct Awaited {
  std::shared_ptr<ArrivingValues> values;
  at::Tensor place;
};

void delete_awaited(void* context) { delete static_cast<Awaited*>(context); }

const Awaited* awaited_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kWrapperKey) || !tensor.has_storage()) {
    return nullptr;
  }
  const auto& memory = tensor.unsafeGetTensorImpl()
                           ->unsafe_storage()
                           .unsafeGetStorageImpl()
                           ->_mutable_data_ptr_no_checks();
  return static_cast<const Awaited*>(memory.cast_context<Awaited>(&delete_awaited));
}

bool wait_for_tensor(const at::Tensor& tensor) {
  const auto* const awaited = awaited_of(tensor);
  if (!awaited) {
    return false;
  }
  awaited->values->wait();
  become(tensor, at::Tensor(awaited->place));  // a copy: the context goes with the old storage
  return true;
}

bool wait_for_value(const c10::IValue& value) {
  if (value.isTensor()) {
    return wait_for_tensor(value.toTensor());
  }
  bool has_waited = false;
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      has_waited |= wait_for_tensor(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      has_waited |= wait_for_value(item);
    }
  }
  return has_waited;
}

}  // namespace

void ArrivingValues::start(comm::Work work, at::Tensor arrival, at::Tensor target) {
  const std::lock_guard lock(mutex_);
  work_ = std::move(work);
  if (!arrival.is_same(target)) {
    arrival_ = std::move(arrival);
    target_ = std::move(target);
  }
}

void ArrivingValues::wait() {
  const std::lock_guard lock(mutex_);
  std::exchange(work_, {}).wait();
  if (arrival_.defined()) {
    const at::NoGradGuard no_grad;
    std::exchange(target_, at::Tensor()).copy_(std::exchange(arrival_, at::Tensor()));
  }
}

comm::Work ArrivingValues::work() const {
  const std::lock_guard lock(mutex_);
  return work_;
}

at::Tensor make_awaited(std::shared_ptr<ArrivingValues> values, const at::Tensor& place) {
  auto* const context = new Awaited{std::move(values), place};
  c10::Storage storage(c10::Storage::use_byte_size_t(), place.storage().nbytes(),
                       c10::DataPtr(nullptr, context, &delete_awaited, place.device()),
                       place.storage().allocator(), /*resizable=*/false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "the address of a parameter was asked for while its values are being gathered "
      "(overlap_gather): call wait_for_parameters() first");
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), place.key_set().add(kWrapperKey), place.dtype());
  result.unsafeGetTensorImpl()->set_sizes_and_strides(place.sizes(), place.strides());
  return result;
}

void become(const at::Tensor& parameter, const at::Tensor& other) {
  parameter.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
}

bool wait_for_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  bool has_waited = false;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    has_waited |= wait_for_value(stack[i]);
  }
  return has_waited;
}

}  // namespace fairshard::shard

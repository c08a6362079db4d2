#include "paged_slice.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::page {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// A tensor without memory, like another, on a device.
at::Tensor make_twin(const at::Tensor& like, at::Device device, at::ScalarType dtype) {
  const auto bytes = static_cast<size_t>(like.numel()) * c10::elementSize(dtype);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device),
                       nullptr, /*resizable=*/false);
  at::Tensor twin = at::empty({0}, at::device(device).dtype(dtype));
  return twin.set_(std::move(storage), 0, like.sizes(), like.strides());
}

bool overlaps(const at::Tensor& tensor, const at::Tensor& bytes) {
  if (!tensor.is_cpu() || !bytes.defined() || tensor.layout() != at::kStrided) {
    return false;
  }
  const auto* begin = static_cast<const char*>(bytes.const_data_ptr());
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  return data >= begin && data < begin + bytes.numel();
}

bool is_plain(const at::Tensor& gradient) { return gradient.layout() == at::kStrided; }

}  // namespace

PagedSlice::PagedSlice(const std::vector<at::Tensor>& parameters, at::Device device,
                       std::optional<at::ScalarType> dtype) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.is_non_overlapping_and_dense()) {
      at::Tensor(parameter).set_data(parameter.detach().contiguous());
    }
    const auto own = parameter.is_floating_point() && dtype ? *dtype : parameter.scalar_type();
    PagedParameter paged;
    paged.parameter = parameter;
    paged.twin = make_twin(parameter, device, own);
    paged.offset = bytes_;
    paged.bytes = static_cast<int64_t>(paged.twin.storage().nbytes());
    bytes_ += aligned(paged.bytes);
    master_bytes_ += own == parameter.scalar_type() ? 0 : aligned(parameter.nbytes());
    parameters_.push_back(std::move(paged));
  }
}

void PagedSlice::move_to(const std::shared_ptr<HostMemory>& images, int64_t offset) {
  const at::NoGradGuard no_grad;
  image_bytes_ = images->bytes(offset, bytes_);
  for (PagedParameter& paged : parameters_) {
    paged.image = images->tensor(offset + paged.offset, paged.twin.sizes(), paged.twin.strides(),
                                 paged.twin.scalar_type());
    paged.image.copy_(paged.parameter);
    if (paged.image.scalar_type() == paged.parameter.scalar_type()) {
      paged.parameter.set_data(paged.image);
    }
  }
}

void PagedSlice::set_masters(const std::shared_ptr<HostMemory>& masters, int64_t offset) {
  const at::NoGradGuard no_grad;
  for (PagedParameter& paged : parameters_) {
    if (paged.image.scalar_type() != paged.parameter.scalar_type()) {
      at::Tensor master = masters->tensor(offset, paged.twin.sizes(), paged.twin.strides(),
                                          paged.parameter.scalar_type());
      offset += aligned(static_cast<int64_t>(master.nbytes()));
      paged.parameter.set_data(master.copy_(paged.parameter));
    }
  }
}

void PagedSlice::set_gradients(const std::shared_ptr<HostMemory>& gradients, int64_t offset) {
  gradient_bytes_ = gradients->bytes(offset, bytes_);
  for (PagedParameter& paged : parameters_) {
    paged.gradient = gradients->tensor(offset + paged.offset, paged.twin.sizes(),
                                       paged.twin.strides(), paged.twin.scalar_type());
  }
}

bool PagedSlice::is_trainable() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const auto& paged) { return paged.parameter.requires_grad(); });
}

void PagedSlice::fill(const at::Tensor& slot) {
  auto* const data = static_cast<char*>(slot.mutable_data_ptr());
  for (PagedParameter& paged : parameters_) {
    paged.twin.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::DataPtr(data + paged.offset, slot.device()));
  }
  is_filled_ = true;
}

void PagedSlice::empty() {
  for (PagedParameter& paged : parameters_) {
    paged.twin.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        c10::DataPtr(nullptr, paged.twin.device()));
  }
  is_filled_ = false;
}

void PagedSlice::refresh_images() {
  const at::NoGradGuard no_grad;
  for (PagedParameter& paged : parameters_) {
    const at::Tensor& parameter = paged.parameter;
    if (parameter.is_alias_of(paged.image) || paged.seen_version == parameter._version()) {
      continue;
    }
    TORCH_CHECK(parameter.sizes() == paged.image.sizes(), "an offloaded parameter of shape ",
                paged.image.sizes(), " has become one of shape ", parameter.sizes());
    paged.image.copy_(parameter);
  }
}

void PagedSlice::enter() {
  for (PagedParameter& paged : parameters_) {
    // Shares the version counter, so that a change in between is still noticed by autograd.
    paged.host = paged.parameter.tensor_data();
    paged.parameter.set_data(paged.twin);
  }
  is_entered_ = true;
}

void PagedSlice::leave() {
  for (PagedParameter& paged : parameters_) {
    paged.parameter.set_data(paged.host);
    paged.host.reset();
  }
  is_entered_ = false;
}

void PagedSlice::set_gradients_aside() {
  for (PagedParameter& paged : parameters_) {
    at::Tensor& gradient = paged.parameter.mutable_grad();
    if (gradient.defined()) {
      // The memory where the next gradient arrives may be what this one lies in.
      paged.old_gradient = overlaps(gradient, gradient_bytes_) ? gradient.clone() : gradient;
      gradient.reset();
    }
  }
}

bool PagedSlice::pack_gradients() {
  const at::NoGradGuard no_grad;
  bool is_any = false;
  for (PagedParameter& paged : parameters_) {
    at::Tensor& gradient = paged.parameter.mutable_grad();
    paged.arrives = gradient.defined() && is_plain(gradient);
    if (paged.arrives) {
      paged.twin.copy_(gradient);
      is_any = true;
    } else if (gradient.defined()) {
      const at::Tensor arrived = gradient.to(at::kCPU);
      paged.old_gradient = paged.old_gradient.defined() ? paged.old_gradient + arrived : arrived;
    }
    gradient.reset();
  }
  return is_any;
}

int64_t PagedSlice::send_gradients(const at::Tensor& slot) {
  const auto arrives = [](const PagedParameter& paged) { return paged.arrives; };
  if (std::all_of(parameters_.begin(), parameters_.end(), arrives)) {
    gradient_bytes_.copy_(slot.narrow(0, 0, bytes_), /*non_blocking=*/true);
    return bytes_;
  }
  int64_t sent = 0;
  for (PagedParameter& paged : parameters_) {
    if (paged.arrives) {
      gradient_bytes_.narrow(0, paged.offset, paged.bytes)
          .copy_(slot.narrow(0, paged.offset, paged.bytes), /*non_blocking=*/true);
      sent += paged.bytes;
    }
  }
  return sent;
}

void PagedSlice::publish_gradients() {
  const at::NoGradGuard no_grad;
  for (PagedParameter& paged : parameters_) {
    at::Tensor& gradient = paged.parameter.mutable_grad();
    if (!paged.arrives) {
      gradient = paged.old_gradient;
    } else if (paged.old_gradient.defined()) {
      gradient = paged.old_gradient.add_(paged.gradient);
    } else {
      gradient = paged.gradient.to(paged.parameter.scalar_type()).tensor_data();
    }
    paged.old_gradient.reset();
    paged.arrives = false;
  }
}

void PagedSlice::restore_gradients() {
  for (PagedParameter& paged : parameters_) {
    paged.parameter.mutable_grad() = paged.old_gradient;
    paged.old_gradient.reset();
    paged.arrives = false;
  }
}

}  // namespace fairshard::page

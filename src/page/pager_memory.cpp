// How a Pager takes its memory, on the device, on the host and in files.
#include "pager_impl.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::page {

at::Device checked_device(at::Device device) {
  TORCH_CHECK_VALUE(c10::impl::hasDeviceGuardImpl(device.type()), "device ", device,
                    " is not available: this torch has no support for it");
  if (device.is_cpu()) {
    return at::kCPU;
  }
  const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
  const int count = static_cast<unsigned char>(guard->deviceCount());
  TORCH_CHECK_VALUE(count > 0 && device.index() < count, "device ", device,
                    " is not available: ", count, " of its kind can be used");
  return device.has_index() ? device : guard->getDevice();
}

Pager::Pager(const std::vector<std::vector<at::Tensor>>& slices,
             const std::vector<at::Tensor>& common, const PagerOptions& options)
    : options_(options) {
  options_.device(checked_device(options.device()));
  TORCH_CHECK_VALUE(!slices.empty(), "there are no slices to page");
  TORCH_CHECK_VALUE(options.prefetch() >= 0, "prefetch is ", options.prefetch(),
                    ", but must be at least 0");
  for (const auto& parameters : slices) {
    slices_.push_back(
        std::make_unique<PagedSlice>(parameters, options_.device(), options_.param_dtype()));
  }
  slices_.push_back(
      std::make_unique<PagedSlice>(common, options_.device(), options_.param_dtype()));
  streams_ = std::make_unique<Streams>(options_.device(), options_.record_spans());
  streams_->filled.resize(slices_.size());
  streams_->arrived.resize(slices_.size());
  report_.slices = static_cast<int64_t>(slices.size());
  if (options_.offload_activations()) {
    streams_->activations = std::make_unique<Activations>(options_.device(), slices.size(),
                                                          streams_->in, streams_->out);
  }
  take_device_memory();
  take_host_memory();
}

Pager::~Pager() = default;

void Pager::take_device_memory() {
  int64_t slot_bytes = 0;
  for (size_t i = 0; i + 1 < slices_.size(); ++i) {
    slot_bytes = std::max(slot_bytes, slices_[i]->bytes());
  }
  // One computes, others are on their way, and the gradients of one leave.
  int64_t needed = std::min<int64_t>(report_.slices, options_.prefetch() + 2);
  if (const auto budget = options_.device_budget_bytes()) {
    const int64_t left = *budget - common().bytes();
    TORCH_CHECK_VALUE(left >= std::min<int64_t>(needed, 2) * slot_bytes, "device_budget_bytes is ",
                      *budget, ", but ", std::min<int64_t>(needed, 2), " slots of ", slot_bytes,
                      " bytes and ", common().bytes(),
                      " bytes of common parameters are needed: more slices make smaller slots");
    needed = slot_bytes == 0 ? needed : std::min(report_.slices, left / slot_bytes);
  }
  const auto bytes = at::device(options_.device()).dtype(at::kByte);
  for (int64_t i = 0; i < needed; ++i) {
    slots_.push_back({at::empty({slot_bytes}, bytes), kNone, {}});
  }
  slots_.push_back({at::empty({common().bytes()}, bytes), kNone, {}});
  report_.slots = needed;
  report_.slot_bytes = slot_bytes;
  report_.device_bytes = needed * slot_bytes + common().bytes();
}

void Pager::take_host_memory() {
  // Per slice: weights, gradients (where there will be any), and masters of another dtype.
  int64_t pinned = 0;
  int64_t masters = 0;
  int64_t spilled = 0;
  is_spilled_.assign(slices_.size(), false);
  for (size_t i = slices_.size(); i-- > 0;) {  // the common ones first
    const PagedSlice& slice = *slices_[i];
    const int64_t own = slice.bytes() * (slice.is_trainable() ? 2 : 1);
    const auto budget = options_.host_budget_bytes();
    is_spilled_[i] = budget && pinned + masters + own + slice.master_bytes() > *budget;
    (is_spilled_[i] ? spilled : pinned) += own;
    (is_spilled_[i] ? spilled : masters) += slice.master_bytes();
  }
  TORCH_CHECK_VALUE(
      spilled == 0 || !options_.spill_dir().empty(), "host_budget_bytes is ",
      *options_.host_budget_bytes(), " and ", spilled,
      " bytes of weights and gradients are beyond it: say where they go by spill_dir");
  const auto in_ram = HostMemory::in_ram(pinned, !options_.device().is_cpu());
  const auto plain = HostMemory::in_ram(masters, false);
  const auto file = spilled > 0 ? HostMemory::in_file(spilled, options_.spill_dir()) : nullptr;
  report_.pinned_bytes = in_ram->is_pinned() ? pinned : 0;
  report_.host_bytes = pinned + masters;
  report_.file_bytes = spilled;
  int64_t pinned_used = 0;
  int64_t masters_used = 0;
  int64_t spilled_used = 0;
  for (size_t i = 0; i < slices_.size(); ++i) {
    PagedSlice& slice = *slices_[i];
    int64_t& used = is_spilled_[i] ? spilled_used : pinned_used;
    slice.move_to(is_spilled_[i] ? file : in_ram, used);
    used += slice.bytes();
    if (slice.is_trainable()) {
      slice.set_gradients(is_spilled_[i] ? file : in_ram, used);
      used += slice.bytes();
    }
    int64_t& from = is_spilled_[i] ? spilled_used : masters_used;
    slice.set_masters(is_spilled_[i] ? file : plain, from);
    from += slice.master_bytes();
  }
}

at::Tensor Pager::zeros_like(size_t slice, const at::Tensor& parameter) {
  const auto bytes = static_cast<int64_t>(parameter.nbytes());
  (is_spilled_[slice] ? report_.file_bytes : report_.host_bytes) += bytes;
  const auto memory = is_spilled_[slice] ? HostMemory::in_file(bytes, options_.spill_dir())
                                         : HostMemory::in_ram(bytes, false);
  return memory->tensor(0, parameter.sizes(), parameter.strides(), parameter.scalar_type());
}

std::vector<at::Tensor> Pager::parameters_of(size_t slice) const {
  std::vector<at::Tensor> result;
  for (const PagedParameter& paged : slices_.at(slice)->parameters()) {
    result.push_back(paged.parameter);
  }
  return result;
}

}  // namespace fairshard::page

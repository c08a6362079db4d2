#include "activations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <utility>

namespace fairshard::page {
namespace {

constexpr size_t kLeavingSlices = 2;

bool has(const std::vector<at::Tensor>& tensors, const c10::Storage& storage) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const at::Tensor& tensor) {
    return tensor.storage().is_alias_of(storage);
  });
}

at::Tensor bytes_of(void* data, int64_t bytes, at::Device device) {
  return at::from_blob(data, {bytes}, at::device(device).dtype(at::kByte));
}

}  // namespace

void Activations::begin() {
  while (!leaving_.empty()) {
    leaving_.front().second.wait();
    leaving_.pop_front();
  }
  inputs_.clear();
  current_ = -1;
  for (size_t i = 0; i < slices_.size(); ++i) {
    for (Value& value : slices_[i].values) {
      value.is_away = value.is_away && value.storage.use_count() > 1;
    }
    start_filling(static_cast<int64_t>(i));  // a graph that may still see its backward
    hold_until_filled(static_cast<int64_t>(i), current_stream(device_));
    release(static_cast<int64_t>(i));
  }
}

void Activations::release(int64_t number) {
  auto& values = slices_[number].values;
  for (Value& value : values) {
    if (value.host && !value.is_away) {
      // Whoever writes to it next comes after the slice's computation, which has waited for it.
      spare_.push_back(std::move(value.host));
    }
  }
  std::erase_if(values, [](const Value& value) { return !value.is_away; });
}

int64_t Activations::cross(int64_t to, const std::vector<at::Tensor>& values) {
  int64_t sent = 0;
  if (current_ >= 0) {
    sent = send(slices_[current_], values);
  }
  current_ = to;
  for (const at::Tensor& value : values) {
    if (to == 0) {
      inputs_.push_back(value.storage());
    }
    const bool is_own = std::none_of(inputs_.begin(), inputs_.end(), [&](const auto& input) {
      return value.storage().is_alias_of(input);
    });
    if (to >= 0 && is_own && value.device() == device_ && value.layout() == at::kStrided) {
      slices_[to].values.push_back({value.storage(), nullptr, false});
    }
  }
  return sent;
}

int64_t Activations::send(Slice& slice, const std::vector<at::Tensor>& kept) {
  const Event computed(current_stream(device_), false);
  computed.hold(out_.stream());
  std::vector<c10::DataPtr> memory;
  int64_t sent = 0;
  out_.run([&] {
    for (Value& value : slice.values) {
      c10::StorageImpl* const storage = value.storage.unsafeGetStorageImpl();
      if (has(kept, value.storage) || storage->data() == nullptr) {
        continue;
      }
      const auto bytes = static_cast<int64_t>(storage->nbytes());
      value.host = host_memory(bytes);
      value.host->bytes(0, bytes).copy_(bytes_of(storage->mutable_data(), bytes, device_),
                                        /*non_blocking=*/true);
      memory.push_back(std::move(storage->_mutable_data_ptr_no_checks()));
      storage->set_data_ptr_noswap(c10::DataPtr(nullptr, device_));
      value.is_away = true;
      sent += bytes;
    }
  });
  leaving_.emplace_back(std::move(memory), Event(out_.stream(), false));
  while (leaving_.size() > kLeavingSlices) {
    leaving_.front().second.wait();
    leaving_.pop_front();
  }
  return sent;
}

int64_t Activations::start_filling(int64_t number) {
  Slice& slice = slices_[number];
  int64_t bytes = 0;
  for (Value& value : slice.values) {
    if (!std::exchange(value.is_away, false)) {
      continue;
    }
    const int64_t own = value.host->size();
    const at::Tensor fresh = at::empty({own}, at::device(device_).dtype(at::kByte));
    // The memory may be what kernels that are still to run work on.
    Event(current_stream(device_), false).hold(in_.stream());
    in_.run([&] { fresh.narrow(0, 0, own).copy_(value.host->bytes(0, own), true); });
    value.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
        std::move(fresh.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
    bytes += own;
  }
  if (bytes > 0) {
    slice.filled = Event(in_.stream(), false);
  }
  return bytes;
}

void Activations::hold_until_filled(int64_t slice, const c10::Stream& stream) const {
  slices_[slice].filled.hold(stream);
}

std::shared_ptr<HostMemory> Activations::host_memory(int64_t bytes) {
  const auto fits = [&](const auto& memory) { return memory->size() == bytes; };
  const auto found = std::find_if(spare_.begin(), spare_.end(), fits);
  if (found == spare_.end()) {
    host_bytes_ += bytes;
    return HostMemory::in_ram(bytes, !device_.is_cpu());
  }
  auto memory = std::move(*found);
  spare_.erase(found);
  return memory;
}

}  // namespace fairshard::page

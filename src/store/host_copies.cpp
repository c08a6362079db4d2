#include "host_copies.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <set>
#include <utility>

namespace fairshard::store {

void HostCopies::take(State& state) {
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> last = std::exchange(buffers_, {});
  std::set<at::Device, bool (*)(at::Device, at::Device)> devices([](at::Device a, at::Device b) {
    return std::pair(a.type(), a.index()) < std::pair(b.type(), b.index());
  });
  state.replace([&](const State::Entry& entry) {
    const at::Tensor values = entry.values();
    const std::string name = entry.key + "/" + std::to_string(entry.begin);
    at::Tensor buffer = last[name];
    const bool is_pinned = values.is_cuda();
    if (!buffer.defined() || buffer.scalar_type() != values.scalar_type() ||
        buffer.numel() != values.numel()) {
      buffer = at::empty({values.numel()},
                         at::TensorOptions(values.scalar_type()).pinned_memory(is_pinned));
    }
    buffer.copy_(values, /*non_blocking=*/true);
    if (!values.is_cpu()) {
      devices.insert(values.device());
    }
    buffers_[name] = buffer;
    return buffer;
  });
  for (const at::Device& device : devices) {
    c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
  }
}

}  // namespace fairshard::store

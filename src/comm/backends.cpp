#include "backends.h"

#include "direct_backend.h"
#include <fairshard/comm/backend.h>
#include <fairshard/comm/seconds.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fairshard::comm {

using c10d::ProcessGroup;

namespace {

/// Gives a group a backend for a device. DirectBackends count as c10d's GLOO: it has one backend of
/// each type, and CUSTOM may be somebody else's.
void set_backend(ProcessGroup& group, c10::DeviceType device, const BackendPtr& backend) {
  const auto type = dynamic_cast<DirectBackend*>(backend.get())
                        ? ProcessGroup::BackendType::GLOO
                        : ProcessGroup::strToBackendType(backend->getBackendName());
  group.setBackend(device, type, backend);
  if (device == c10::DeviceType::CPU ||
      group.getBackendType() == ProcessGroup::BackendType::UNDEFINED) {
    group.setDefaultBackend(type);
  }
}

}  // namespace

ProcessGroupPtr make_process_group(const StorePtr& store, int rank, int size,
                                   const BackendChoice& choice, std::chrono::milliseconds timeout) {
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  const bool needs_direct = choice.cpu || choice.cuda == BackendChoice::Cuda::kThroughHost;
  const BackendPtr direct =
      needs_direct ? DirectBackend::over_gloo(store, rank, size, choice.bind, timeout) : nullptr;
  if (choice.cuda != BackendChoice::Cuda::kNone) {
    const bool is_nccl = choice.cuda == BackendChoice::Cuda::kNccl;
    set_backend(*group, c10::DeviceType::CUDA,
                is_nccl ? make_nccl(store, rank, size, timeout) : direct);
  }
  if (choice.cpu) {
    set_backend(*group, c10::DeviceType::CPU, direct);
  }
  return group;
}

std::string bind_of_environment() {
  std::string bind;
  if (const char* const interfaces = std::getenv("GLOO_SOCKET_IFNAME")) {
    bind = '@';
    bind.append(interfaces, std::strcspn(interfaces, ","));
  }
  return bind;
}

BackendPtr make_backend(const StorePtr& store, int rank, int size, double timeout_s) {
  return DirectBackend::over_gloo(store, rank, size, bind_of_environment(), to_timeout(timeout_s));
}

ProcessGroupPtr decorated(const ProcessGroupPtr& process_group) {
  const auto devices = process_group->getDeviceTypes();
  BackendPtr direct;
  for (const auto& device : devices) {
    const auto backend = process_group->getBackend(device.type());
    if (backend->getBackendName() == "gloo") {
      direct = c10::make_intrusive<DirectBackend>(backend, bind_of_environment());
      break;
    }
  }
  if (!direct) {
    return process_group;
  }
  auto sibling = c10::make_intrusive<ProcessGroup>(
      process_group->getStore(), process_group->getRank(), process_group->getSize());
  sibling->setBoundDeviceId(process_group->getBoundDeviceId());
  for (const auto& device : devices) {
    const auto backend = process_group->getBackend(device.type());
    set_backend(*sibling, device.type(), backend->getBackendName() == "gloo" ? direct : backend);
  }
  return sibling;
}

bool splits_connect(ProcessGroup& process_group) {
  const auto devices = process_group.getDeviceTypes();
  return std::any_of(devices.begin(), devices.end(), [&](const c10::Device& device) {
    const std::string name = process_group.getBackend(device.type())->getBackendName();
    return name == "fairshard" || name == "nccl";
  });
}

ProcessGroupPtr split(ProcessGroup& process_group, const StorePtr& store,
                      const std::vector<int>& ranks) {
  const auto own = std::find(ranks.begin(), ranks.end(), process_group.getRank());
  if (own == ranks.end()) {
    return nullptr;
  }
  const auto rank = static_cast<int>(own - ranks.begin());
  const auto size = static_cast<int>(ranks.size());
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  BackendPtr direct;  // one for all devices
  for (const auto& device : process_group.getDeviceTypes()) {
    const auto backend = process_group.getBackend(device.type());
    BackendPtr child = backend;
    if (auto* const parent = dynamic_cast<DirectBackend*>(backend.get())) {
      direct = direct ? direct : parent->split(store, ranks, nullptr);
      child = direct;
    } else if (backend->getBackendName() == "nccl") {
      child = make_nccl(store, rank, size, timeout_of(*backend));
    } else {
      TORCH_CHECK(size == process_group.getSize(), "a subgroup cannot be made of a group over ",
                  backend->getBackendName(), ": make it with torch.distributed.new_group");
    }
    set_backend(*group, device.type(), child);
  }
  return group;
}

std::chrono::milliseconds timeout_of(c10d::Backend& backend) {
  return backend.getBackendOptions()->timeout;
}

int cuda_device_count() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    return 0;
  }
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount();
}

}  // namespace fairshard::comm

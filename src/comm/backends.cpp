#include "backends.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>

namespace fairshard::comm {

using c10d::ProcessGroup;

namespace {
// Where subgroups of a group look up what its Gloo was bound to.
constexpr auto kBindPrefix = "fairshard gloo bind:";
}  // namespace

c10::intrusive_ptr<ProcessGroup> make_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                                    int rank, int size, const BackendChoice& choice,
                                                    std::chrono::milliseconds timeout) {
  auto group = c10::make_intrusive<ProcessGroup>(store, rank, size);
  auto gloo = make_gloo(store, rank, size, choice.gloo_bind, timeout);
  group->setBackend(c10::DeviceType::CPU, ProcessGroup::BackendType::GLOO, gloo);
  if (choice.cuda == BackendChoice::Cuda::kNccl) {
    group->setBackend(c10::DeviceType::CUDA, ProcessGroup::BackendType::NCCL,
                      make_nccl(store, rank, size, timeout));
  } else if (choice.cuda == BackendChoice::Cuda::kGloo) {
    group->setBackend(c10::DeviceType::CUDA, ProcessGroup::BackendType::GLOO, gloo);
  }
  group->setDefaultBackend(ProcessGroup::BackendType::GLOO);
  group->setGroupDesc(kBindPrefix + choice.gloo_bind);
  return group;
}

BackendChoice backends_like(ProcessGroup& process_group) {
  BackendChoice choice;
  const std::string description = process_group.getGroupDesc();
  const std::string prefix = kBindPrefix;
  if (description.rfind(prefix, 0) == 0) {
    choice.gloo_bind = description.substr(prefix.size());
  } else if (const char* const interfaces = std::getenv("GLOO_SOCKET_IFNAME")) {
    // torch.distributed's own; of several interfaces, which it takes in turn, the first does.
    choice.gloo_bind = '@';
    choice.gloo_bind.append(interfaces, std::strcspn(interfaces, ","));
  }
  for (const auto& device : process_group.getDeviceTypes()) {
    if (device.is_cuda()) {
      choice.cuda = process_group.getBackend(c10::DeviceType::CUDA)->getBackendName() == "nccl"
                        ? BackendChoice::Cuda::kNccl
                        : BackendChoice::Cuda::kGloo;
    }
  }
  return choice;
}

int cuda_device_count() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    return 0;
  }
  return c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount();
}

}  // namespace fairshard::comm

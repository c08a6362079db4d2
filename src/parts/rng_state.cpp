#include "rng_state.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <mutex>

namespace fairshard {

RngState::RngState() {
  std::vector<at::Device> devices{at::Device(at::kCPU)};
  const auto& cuda = at::detail::getCUDAHooks();
  for (at::DeviceIndex i = 0; at::hasCUDA() && i < cuda.deviceCount(); ++i) {
    if (cuda.hasPrimaryContext(i)) {
      devices.emplace_back(at::kCUDA, i);
    }
  }
  for (const at::Device& device : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

void RngState::apply() const {
  for (auto [generator, state] : states_) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

}  // namespace fairshard

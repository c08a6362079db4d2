#include "autocast_state.h"

#include <ATen/autocast_mode.h>

namespace fairshard {

AutocastState::AutocastState() : is_cache_enabled_(at::autocast::is_autocast_cache_enabled()) {
  constexpr std::array kTypes{c10::DeviceType::CPU, c10::DeviceType::CUDA};
  for (size_t i = 0; i < kTypes.size(); ++i) {
    devices_[i] = {kTypes[i], at::autocast::is_autocast_enabled(kTypes[i]),
                   at::autocast::get_autocast_dtype(kTypes[i])};
  }
}

void AutocastState::apply() const {
  for (const Device& device : devices_) {
    at::autocast::set_autocast_enabled(device.type, device.is_enabled);
    at::autocast::set_autocast_dtype(device.type, device.dtype);
  }
  at::autocast::set_autocast_cache_enabled(is_cache_enabled_);
}

AutocastStateGuard::AutocastStateGuard(const AutocastState& state) {
  at::autocast::increment_nesting();
  state.apply();
}

AutocastStateGuard::~AutocastStateGuard() {
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  before_.apply();
}

}  // namespace fairshard

#include <fairshard/amp/autocast.h>

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

namespace fairshard {
namespace {

c10::ScalarType default_dtype(c10::DeviceType device) {
  return device == c10::DeviceType::CUDA ? at::kHalf : at::kBFloat16;
}

}  // namespace

Autocast::Autocast(c10::DeviceType device, std::optional<c10::ScalarType> dtype, bool enabled)
    : device_(device) {
  TORCH_CHECK_VALUE(device == c10::DeviceType::CPU || device == c10::DeviceType::CUDA,
                    "Autocast: the device is ", device, ", but must be CPU or CUDA");
  const c10::ScalarType wanted = dtype.value_or(default_dtype(device));
  TORCH_CHECK_VALUE(!enabled || wanted == at::kHalf || wanted == at::kBFloat16,
                    "Autocast: the dtype is ", wanted, ", but must be Half or BFloat16");
  was_enabled_ = at::autocast::is_autocast_enabled(device);
  previous_dtype_ = at::autocast::get_autocast_dtype(device);
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, wanted);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(device_, was_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_dtype_);
}

}  // namespace fairshard

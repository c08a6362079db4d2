#pragma once
// This thread's autocast state, to be brought back later, perhaps on another thread.

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <array>

namespace fairshard {

class AutocastState {
 public:
  /// The state now.
  AutocastState();
  /// Brings it back.
  void apply() const;

 private:
  struct Device {
    c10::DeviceType type;
    bool is_enabled;
    c10::ScalarType dtype;
  };

  std::array<Device, 2> devices_;
  bool is_cache_enabled_;
};

/// Brings a state back for as long as it lives, and then the one that was there before.
class AutocastStateGuard {
 public:
  explicit AutocastStateGuard(const AutocastState& state);
  ~AutocastStateGuard();
  AutocastStateGuard(const AutocastStateGuard&) = delete;
  AutocastStateGuard& operator=(const AutocastStateGuard&) = delete;

 private:
  AutocastState before_;
};

}  // namespace fairshard

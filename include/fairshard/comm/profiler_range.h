#pragma once
// What a rank is doing, by name, for whoever profiles it.

#include <ATen/record_function.h>

#include <string>

namespace fairshard::comm {

/// While it lives, profilers that are active see a range of this name: torch.profiler, and through
/// torch's emit_nvtx or emit_itt those of vendors. All names begin with "fairshard::". Without a
/// profiler it costs a few nanoseconds, and names are not even made: `name` is called, and returns
/// what follows the prefix.
class ProfilerRange {
 public:
  /// Begins it.
  template <typename Name>
  explicit ProfilerRange(const Name& name) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) {
      record_.before("fairshard::" + std::string(name()));
    }
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  at::RecordFunction record_;
};

}  // namespace fairshard::comm

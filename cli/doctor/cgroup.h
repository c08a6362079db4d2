#pragma once
// What a container, or a job's system, allows this process.

#include <cstdint>
#include <string>

namespace fairshard::cli::doctor {

struct CgroupLimits {
  double cores = -1;    ///< so many cores' time; -1 without a limit
  int64_t memory = -1;  ///< in bytes, likewise
};

/// The narrowest limits of the cgroups that a process is in, of version 2 or 1, by its file
/// /proc/self/cgroup and the folder of all.
CgroupLimits read_cgroup_limits(const std::string& membership = "/proc/self/cgroup",
                                const std::string& root = "/sys/fs/cgroup");

}  // namespace fairshard::cli::doctor

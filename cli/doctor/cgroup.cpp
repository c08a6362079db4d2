#include "cgroup.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace fairshard::cli::doctor {
namespace {

namespace fs = std::filesystem;

/// Version 1 has this, rounded to pages, for no limit.
constexpr int64_t kBeyondMemory = int64_t{1} << 60;

/// The first line of a file, or nothing.
std::istringstream line_of(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return std::istringstream(line);
}

template <typename Number>
void narrow(Number& limit, Number other) {
  if (other > 0) {
    limit = limit < 0 ? other : std::min(limit, other);
  }
}

void read_limits(const fs::path& folder, CgroupLimits& limits) {
  double quota_us = -1;
  double period_us = 0;
  int64_t memory = -1;
  // "max 100000" has no number in front, and leaves zero.
  if (line_of(folder / "cpu.max") >> quota_us >> period_us ||
      (line_of(folder / "cpu.cfs_quota_us") >> quota_us &&
       line_of(folder / "cpu.cfs_period_us") >> period_us)) {
    narrow(limits.cores, period_us > 0 ? quota_us / period_us : -1);
  }
  if (line_of(folder / "memory.max") >> memory ||
      line_of(folder / "memory.limit_in_bytes") >> memory) {
    narrow(limits.memory, memory < kBeyondMemory ? memory : -1);
  }
}

}  // namespace

CgroupLimits read_cgroup_limits(const std::string& membership, const std::string& root) {
  CgroupLimits limits;
  std::ifstream file(membership);
  std::string line;
  while (std::getline(file, line)) {
    // "0::/user.slice/job" or "4:cpu,cpuacct:/job"
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path top = controllers.empty() ? fs::path(root) : fs::path(root) / controllers;
    fs::path below = fs::path(line.substr(second + 1)).relative_path();
    while (!below.empty()) {
      read_limits(top / below, limits);
      below = below.parent_path();
    }
    read_limits(top, limits);
  }
  return limits;
}

}  // namespace fairshard::cli::doctor

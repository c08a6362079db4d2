#include "machine.h"

#include "cgroup.h"
#include "disk.h"
#include "network.h"
#include <fairshard/page/gpus.h>

#include <ATen/Parallel.h>
#include <c10/util/StringUtil.h>
#include <torch/version.h>

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

namespace fairshard::cli::doctor {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

Cores examine_cores(const CgroupLimits& limits) {
  Cores cores;
  constexpr int kMostCores = 8192;
  cpu_set_t* const set = CPU_ALLOC(kMostCores);
  if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(kMostCores), set) == 0) {
    for (int core = 0; core < kMostCores; ++core) {
      if (CPU_ISSET_S(core, CPU_ALLOC_SIZE(kMostCores), set)) {
        cores.allowed.push_back(core);
      }
    }
  }
  CPU_FREE(set);
  cores.quota = limits.cores;
  cores.omp_num_threads = variable("OMP_NUM_THREADS");
  cores.threads = at::get_num_threads();
  return cores;
}

/// Of a line such as "MemTotal:  24556 kB".
void read_memory(Memory& memory) {
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    words >> name >> kib;
    if (name == "MemTotal:") {
      memory.total = kib << 10;
    } else if (name == "MemAvailable:") {
      memory.available = kib << 10;
    }
  }
}

int64_t limit_of(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  const bool is_limited = getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? static_cast<int64_t>(limit.rlim_cur) : -1;
}

Memory examine_memory(const CgroupLimits& limits) {
  Memory memory;
  read_memory(memory);
  memory.cgroup_limit = limits.memory;
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) == 0) {
    const auto block = static_cast<int64_t>(shared.f_frsize);
    memory.shared_total = block * static_cast<int64_t>(shared.f_blocks);
    memory.shared_free = block * static_cast<int64_t>(shared.f_bavail);
  }
  memory.locked_limit = limit_of(RLIMIT_MEMLOCK);
  memory.open_files = limit_of(RLIMIT_NOFILE);
  std::error_code ignored;
  memory.has_infiniband = std::filesystem::exists("/sys/class/infiniband", ignored) &&
                          !std::filesystem::is_empty("/sys/class/infiniband", ignored);
  return memory;
}

Versions examine_versions() {
  utsname system{};
  uname(&system);
#ifdef __clang__
  constexpr const char* kCompiler = "clang ";
#else
  constexpr const char* kCompiler = "g++ ";
#endif
  return {FAIRSHARD_VERSION, TORCH_VERSION, std::string(kCompiler) + __VERSION__, system.release,
          variable("FAIRSHARD_PYTHON_VERSION")};
}

/// By the start of its kernel, and the network that this process has of it.
std::string machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  std::error_code ignored;
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", ignored);
  return boot + " " + network;
}

}  // namespace

Machine examine_machine(const comm::Environment& environment, const std::string& save,
                        double limit_s) {
  Machine machine;
  machine.rank = environment.rank;
  machine.local_rank = environment.local_rank;
  machine.origin = environment.origin;
  machine.machine_id = machine_id();
  machine.network = examine_network(environment, limit_s);
  const CgroupLimits limits = read_cgroup_limits();
  machine.cores = examine_cores(limits);
  machine.memory = examine_memory(limits);
  if (!save.empty()) {
    machine.disk = examine_disk(save, environment.local_rank == 0, limit_s);
  }
  for (const auto& gpu : page::visible_gpus()) {
    machine.gpus.push_back({gpu.name, gpu.bus_id, gpu.peers});
  }
  machine.versions = examine_versions();
  return machine;
}

}  // namespace fairshard::cli::doctor

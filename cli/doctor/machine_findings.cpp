// Cores, memory, limits, disks, GPUs and versions.
#include "findings.h"
#include "words.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <set>

namespace fairshard::cli::doctor {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

/// The ranks of one machine.
using Together = std::vector<const Machine*>;

std::vector<Together> by_machine(const Measurements& measurements) {
  std::vector<Together> result;
  std::map<std::string, size_t> places;
  for (const auto& machine : measurements.machines) {
    const auto [place, is_new] = places.emplace(machine.machine_id, result.size());
    if (is_new) {
      result.emplace_back();
    }
    result[place->second].push_back(&machine);
  }
  return result;
}

std::vector<int> ranks_of(const Together& together) {
  std::vector<int> ranks;
  for (const Machine* const machine : together) {
    ranks.push_back(machine->rank);
  }
  return ranks;
}

/// What a cgroup lets its processes use of so many cores.
double usable(size_t cores, double quota) {
  return quota < 0 ? static_cast<double>(cores) : std::min(quota, static_cast<double>(cores));
}

std::string cores_text(double cores) {
  const int digits = cores == static_cast<int64_t>(cores) ? 0 : 1;
  return with_digits(cores, digits) + (cores == 1 ? " core" : " cores");
}

void find_in_cores(const Together& together, Findings& found) {
  std::set<int> all;
  double threads = 0;
  for (const Machine* const machine : together) {
    all.insert(machine->cores.allowed.begin(), machine->cores.allowed.end());
    threads += machine->cores.threads;
  }
  const auto& first = together.front()->cores;
  const double cores = usable(all.size(), first.quota);
  const auto ranks = static_cast<double>(together.size());
  if (!all.empty() && threads > cores) {
    const std::string omp = first.omp_num_threads.empty()
                                ? "OMP_NUM_THREADS is not set"
                                : "OMP_NUM_THREADS is " + first.omp_num_threads;
    const auto each = static_cast<int>(cores / ranks);
    found.push_back({Severity::kHurts, "cores", ranks_of(together),
                     c10::str(together.size(), " rank(s) on this machine have ", threads,
                              " threads in all (", omp, ") on ", cores_text(cores),
                              first.quota < 0 ? "" : ", which is what the cgroup gives (cpu.max)"),
                     each >= 1
                         ? c10::str("set OMP_NUM_THREADS=", each)
                         : c10::str("start no more than ", std::max(1, static_cast<int>(cores)),
                                    " rank(s) on this machine")});
  }
  for (const Machine* const machine : together) {
    const auto& own = machine->cores;
    if (!own.allowed.empty() && own.allowed.size() < all.size() &&
        static_cast<size_t>(own.threads) > own.allowed.size()) {
      found.push_back({Severity::kHurts,
                       "cores",
                       {machine->rank},
                       c10::str("is bound to ", cores_text(static_cast<double>(own.allowed.size())),
                                " of ", all.size(), " and has ", own.threads, " threads"),
                       "have the launcher bind no rank, or to as many cores as it has threads "
                       "(mpirun --bind-to none, srun --cpu-bind=none)"});
    }
  }
}

void find_in_memory(const Measurements& measurements, const Together& together, Findings& found) {
  const auto& memory = together.front()->memory;
  const auto ranks = ranks_of(together);
  const int64_t available =
      memory.cgroup_limit < 0 ? memory.available : std::min(memory.available, memory.cgroup_limit);
  const int64_t each = available / static_cast<int64_t>(ranks.size());
  if (available >= 0 && each < kGiB) {
    found.push_back(
        {Severity::kHurts, "memory", ranks,
         c10::str("each rank has ", bytes_or(each, ""), " of memory left on this machine"),
         "end what else runs there, start fewer ranks, or shard more "
         "(fairshard plan says what a strategy needs)"});
  }
  constexpr int64_t kLittleShared = 256 * kMiB;
  if (memory.shared_total >= 0 && memory.shared_free < kLittleShared) {
    found.push_back({Severity::kHurts, "memory", ranks,
                     c10::str("/dev/shm has ", bytes_or(memory.shared_free, ""), " free of ",
                              bytes_or(memory.shared_total, ""),
                              ": workers of a DataLoader and NCCL exchange data there, and end "
                              "with a bus error"),
                     "docker run --shm-size=8g or --ipc=host; else mount -o remount,size=8g "
                     "/dev/shm, and remove what was left there"});
  }
  if (memory.has_infiniband && memory.locked_limit >= 0) {
    found.push_back({Severity::kHurts, "limits", ranks,
                     c10::str("there is InfiniBand, and ", bytes_or(memory.locked_limit, ""),
                              " of memory may be locked: NCCL cannot register its buffers"),
                     "ulimit -l unlimited (limits.conf, LimitMEMLOCK=, docker run --ulimit "
                     "memlock=-1)"});
  }
  // A connection to each other rank in each group, of which a run has a few, and files.
  const int64_t needed = 256 + 4 * static_cast<int64_t>(measurements.ranks);
  if (memory.open_files >= 0 && memory.open_files < needed) {
    found.push_back(
        {Severity::kFails, "limits", ranks,
         c10::str("a process may have ", memory.open_files, " files open; ", measurements.ranks,
                  " ranks connected to each other need about ", needed),
         c10::str("ulimit -n ", 4 * needed)});
  }
}

void find_on_disk(const Machine& machine, Findings& found) {
  const auto& disk = machine.disk;
  const auto add = [&](Severity severity, const std::string& seen, const std::string& change) {
    found.push_back(
        {severity, "disk", {machine.rank}, "--save " + disk.folder + ": " + seen, change});
  };
  if (disk.folder.empty()) {
    return;
  }
  if (!disk.fault.empty()) {
    add(Severity::kFails, disk.fault, "choose another folder for checkpoints, or mend this one");
    return;
  }
  if (disk.free < kGiB) {
    add(Severity::kHurts, bytes_or(disk.free, "") + " free",
        "make room, or keep fewer checkpoints (--keep)");
  }
  if (disk.is_in_memory) {
    add(Severity::kHurts, "it is kept in memory, so that checkpoints are lost with the machine",
        "choose a folder on a disk");
  }
  constexpr double kSlowDisk = 50e6;
  if (disk.written > 0 && disk.bytes_per_s < kSlowDisk) {
    add(Severity::kHurts,
        c10::str("writes ", with_unit(disk.bytes_per_s / 1e6, "MB/s"),
                 " with fsync: a checkpoint of 1 GB takes ",
                 readable_delay(1e9 / disk.bytes_per_s)),
        "choose a quicker disk, or save less often (--save-every)");
  }
}

void find_in_gpus(const Together& together, size_t others, Findings& found) {
  const auto& gpus = together.front()->gpus;
  const auto ranks = ranks_of(together);
  if (gpus.size() != others) {
    found.push_back({Severity::kHurts, "gpus", ranks,
                     c10::str("sees ", gpus.size(), " GPU(s), and rank 0 sees ", others),
                     "look at nvidia-smi there, at CUDA_VISIBLE_DEVICES and at the container's "
                     "--gpus"});
  }
  if (!gpus.empty() && ranks.size() > gpus.size()) {
    found.push_back({Severity::kNote, "gpus", ranks,
                     c10::str(ranks.size(), " ranks on this machine share ", gpus.size(),
                              " GPU(s): tensors go through host memory"),
                     "start one rank for each GPU"});
  }
  const bool lacks_peers =
      std::ranges::any_of(gpus, [&](const Gpu& gpu) { return gpu.peers.size() + 1 < gpus.size(); });
  if (lacks_peers) {
    found.push_back({Severity::kNote, "gpus", ranks,
                     "not all GPUs reach each other's memory: NCCL goes through the host's",
                     "if they should: the IOMMU, or ACS on PCIe switches, is in the way"});
  }
}

void find_in_versions(const Measurements& measurements, Findings& found) {
  struct Field {
    const char* name;
    std::string Versions::*value;
    Severity severity;
  };
  const auto& first = measurements.machines.front();
  for (const auto& [name, value, severity] :
       {Field{"fairshard", &Versions::fairshard, Severity::kFails},
        Field{"torch", &Versions::torch, Severity::kFails},
        Field{"the compiler", &Versions::compiler, Severity::kNote},
        Field{"the kernel", &Versions::kernel, Severity::kNote},
        Field{"Python", &Versions::python, Severity::kNote}}) {
    for (const auto& machine : measurements.machines) {
      const std::string& own = machine.versions.*value;
      if (own != first.versions.*value) {
        found.push_back({severity,
                         "versions",
                         {machine.rank},
                         c10::str(name, " is ", own.empty() ? "not known" : own, ", and ",
                                  first.versions.*value, " on rank ", first.rank),
                         "install the same on all machines"});
      }
    }
  }
}

}  // namespace

Findings find_in_machines(const Measurements& measurements) {
  Findings found;
  if (measurements.machines.empty()) {
    return found;
  }
  for (const auto& together : by_machine(measurements)) {
    find_in_cores(together, found);
    find_in_memory(measurements, together, found);
    find_in_gpus(together, measurements.machines.front().gpus.size(), found);
  }
  for (const auto& machine : measurements.machines) {
    find_on_disk(machine, found);
  }
  find_in_versions(measurements, found);
  return found;
}

}  // namespace fairshard::cli::doctor

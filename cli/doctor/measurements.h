#pragma once
// fairshard doctor: what each rank finds out about where it runs, and what all of it gives. Sizes
// are in bytes, and -1 where there is no limit or nothing is known.

#include <fairshard/comm/link.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fairshard::cli::doctor {

struct Interface {
  std::string name;
  std::string address;
  bool is_loopback = false;
  bool is_up = false;
  /// As its driver says; not what the path behind it carries.
  int64_t mbit_per_s = -1;
  int64_t mtu = -1;
};

/// How this rank is reached.
struct Network {
  std::string host;
  std::vector<std::string> host_addresses;
  std::string host_fault;
  double resolve_s = 0;
  std::vector<Interface> interfaces;
  /// Where its process group listens: see comm::ListeningPlace.
  std::string address;
  std::string interface;
  std::string chosen_by;
  std::string fault;
  /// MASTER_ADDR, and the address that this machine sends from to it; empty without one.
  std::string master;
  std::string address_to_master;
};

struct Cores {
  /// By number, as the affinity of this process has them.
  std::vector<int> allowed;
  /// So many cores' time the cgroup gives; -1 without a limit.
  double quota = -1;
  /// OMP_NUM_THREADS, and the threads that torch has in this process.
  std::string omp_num_threads;
  int threads = 0;
};

struct Memory {
  int64_t total = -1;
  int64_t available = -1;
  int64_t cgroup_limit = -1;
  /// /dev/shm
  int64_t shared_total = -1;
  int64_t shared_free = -1;
  /// RLIMIT_MEMLOCK and RLIMIT_NOFILE.
  int64_t locked_limit = -1;
  int64_t open_files = -1;
  /// InfiniBand, whose libraries lock memory.
  bool has_infiniband = false;
};

/// Where checkpoints go. The rate is measured by one rank of each machine.
struct Disk {
  std::string folder;
  std::string fault;
  int64_t free = -1;
  int64_t written = 0;
  double bytes_per_s = 0;
  bool is_in_memory = false;
};

struct Gpu {
  std::string name;
  std::string bus_id;
  std::vector<int> peers;
};

struct Versions {
  std::string fairshard;
  std::string torch;
  std::string compiler;
  std::string kernel;
  std::string python;
};

struct Machine {
  int rank = 0;
  int local_rank = 0;
  /// Who has started it.
  std::string origin;
  /// The same for ranks that share a network: a machine, or a container with one of its own.
  std::string machine_id;
  Network network;
  Cores cores;
  Memory memory;
  Disk disk;
  std::vector<Gpu> gpus;
  Versions versions;
  /// See comm::Probe.
  std::vector<std::string> unheard_by;
};

struct Measurements {
  int ranks = 0;
  /// Of ranks that have answered, in order.
  std::vector<Machine> machines;
  std::vector<comm::Link> links;
};

}  // namespace fairshard::cli::doctor

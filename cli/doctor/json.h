#pragma once
// Measurements and findings as JSON: for programs, and to send them from rank to rank.

#include "findings.h"
#include "measurements.h"

#include <nlohmann/json.hpp>

namespace fairshard::cli::doctor {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Interface, name, address, is_loopback, is_up, mbit_per_s, mtu)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Network, host, host_addresses, host_fault, resolve_s, interfaces,
                                   address, interface, chosen_by, fault, master, address_to_master)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Cores, allowed, quota, omp_num_threads, threads)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Memory, total, available, cgroup_limit, shared_total,
                                   shared_free, locked_limit, open_files, has_infiniband)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Disk, folder, fault, free, written, bytes_per_s, is_in_memory)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Gpu, name, bus_id, peers)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Versions, fairshard, torch, compiler, kernel, python)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Machine, rank, local_rank, origin, machine_id, network, cores,
                                   memory, disk, gpus, versions, unheard_by)

using Json = nlohmann::json;

/// One object with all of it, as the program prints it.
Json json_of(const Measurements& measurements, const std::vector<Finding>& findings);

/// A text for other ranks, and back.
std::string to_text(const Machine& machine);
Machine machine_from(const std::string& text);
std::string to_text(const std::vector<comm::Link>& links);
std::vector<comm::Link> links_from(const std::string& text);

}  // namespace fairshard::cli::doctor

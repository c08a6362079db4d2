#pragma once
// Who am I? Reads rank, world size and meeting point from what a launcher has set.

#include <functional>
#include <optional>
#include <string>

namespace fairshard::comm {

/// How ranks meet, as told by a launcher's environment variables.
struct Environment {
  int rank = 0;              ///< from 0 to world_size - 1
  int world_size = 1;        ///< how many ranks there are
  int local_rank = 0;        ///< rank among those on this machine
  int local_world_size = 1;  ///< how many ranks are on this machine

  /// Ranks meet in this file (one machine) if set, else at master_addr:master_port.
  std::string store_file;
  /// The host that serves the store.
  std::string master_addr;
  int master_port = 0;  ///< see master_addr
  /// torchrun's agent serves the store at master_addr:master_port, so that no rank has to.
  bool agent_serves_store = false;
  /// Keeps the keys of torchrun's restarts apart.
  std::string store_prefix;

  /// Who set the variables: "launch", "torchrun", "Open MPI", "Slurm" or "none" (one rank alone).
  std::string origin = "none";

  /// Whether loopback is enough.
  bool is_one_machine() const { return local_world_size == world_size; }
};

/// Looks a variable up; the default reads the process's environment.
using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;

/// Reads fairshard's own variables (set by launch()), torchrun's (RANK, WORLD_SIZE, LOCAL_RANK,
/// LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), Open MPI's or Slurm's, in this order. On a single
/// machine Open MPI and Slurm need no MASTER_ADDR and MASTER_PORT. Throws c10::ValueError that
/// names the variable and its value if one is missing or malformed. Local.
Environment read_environment(const VariableLookup& lookup = {});

/// The first host of a Slurm node list, for instance "n[07-09,12],m1" gives "n07".
std::string first_slurm_host(const std::string& node_list);

}  // namespace fairshard::comm

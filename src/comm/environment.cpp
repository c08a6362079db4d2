#include <fairshard/comm/environment.h>
#include <fairshard/comm/temporary_folder.h>

#include <c10/util/Exception.h>

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

namespace fairshard::comm {
namespace {

class Variables {
 public:
  explicit Variables(VariableLookup lookup) : lookup_(std::move(lookup)) {}

  std::optional<std::string> find(const std::string& name) const { return lookup_(name); }
  bool has(const std::string& name) const { return lookup_(name).has_value(); }

  std::string text(const std::string& name, const std::string& needed_by) const {
    const auto value = lookup_(name);
    TORCH_CHECK_VALUE(value && !value->empty(), "environment variable ", name,
                      value ? " is empty" : " is not set", ", but ", needed_by, " needs it");
    return *value;
  }

  int number(const std::string& name, const std::string& needed_by, int least, int most) const {
    const std::string value = text(name, needed_by);
    int result = 0;
    const char* end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, result);
    TORCH_CHECK_VALUE(error == std::errc() && stop == end, "environment variable ", name, " is '",
                      value, "', which is not a whole number");
    TORCH_CHECK_VALUE(result >= least && result <= most, "environment variable ", name, " is ",
                      result, ", but must be from ", least, " to ", most);
    return result;
  }

 private:
  VariableLookup lookup_;
};

constexpr int kMostRanks = 1 << 20;

/// The names under which a launcher tells a process who it is.
struct Names {
  const char* origin;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
};

Environment read_ranks(const Variables& variables, const Names& names) {
  Environment env;
  env.origin = names.origin;
  env.world_size = variables.number(names.world_size, names.rank, 1, kMostRanks);
  env.rank = variables.number(names.rank, names.world_size, 0, kMostRanks);
  TORCH_CHECK_VALUE(env.rank < env.world_size, "environment variable ", names.rank, " is ",
                    env.rank, ", but ", names.world_size, " is ", env.world_size,
                    ": ranks go from 0 to ", env.world_size - 1);
  const auto optional = [&](const char* name, int otherwise, int least, int most) {
    return variables.has(name) ? variables.number(name, names.rank, least, most) : otherwise;
  };
  // Without the local variables every rank is taken to be on a machine of its own.
  env.local_world_size =
      optional(names.local_world_size, env.world_size == 1 ? 1 : 0, 1, env.world_size);
  env.local_rank = optional(names.local_rank, 0, 0, env.world_size - 1);
  if (env.local_world_size == 0) {
    env.local_world_size = env.local_rank + 1;
  }
  return env;
}

void read_master(const Variables& variables, Environment& env, const std::string& needed_by) {
  env.master_addr = variables.text("MASTER_ADDR", needed_by);
  env.master_port = variables.number("MASTER_PORT", needed_by, 1, 65535);
}

/// A file that only the ranks of one job on this machine name. A name must never come again, or
/// ranks would meet what is left of a job that was killed before they had met.
std::string job_file(const std::string& job) {
  return c10::str(temporary_directory(), "/fairshard-", getuid(), "-", job, "/store");
}

/// When a process was started, in ticks since the machine was: numbers of processes come again.
std::string start_time_of(pid_t process) {
  std::ifstream file(c10::str("/proc/", process, "/stat"));
  std::string text;
  std::getline(file, text);
  // The second field is a name in parentheses, which may have spaces; the 22nd is the time.
  std::istringstream rest(text.substr(std::min(text.size(), text.find_last_of(')') + 1)));
  std::string field;
  for (int i = 3; i <= 22; ++i) {
    rest >> field;
  }
  return field;
}

/// One run of mpirun: its name space has mpirun's process in it, and its address a port; older ones
/// without these are the parents of their ranks.
std::string mpi_job(const Variables& variables) {
  const auto space = variables.find("PMIX_NAMESPACE");
  const auto address = variables.find("PMIX_SERVER_URI2");
  if (space && address) {
    return c10::str("mpi-", *space, "-", std::hash<std::string>()(*address));
  }
  return c10::str("mpi-", getppid(), "-", start_time_of(getppid()), "-", space.value_or("job"));
}

Environment from_launch(const Variables& variables) {
  Environment env =
      read_ranks(variables, {"launch", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  env.store_file = variables.text("FAIRSHARD_STORE_FILE", "launch");
  return env;
}

Environment from_torchrun(const Variables& variables) {
  Environment env =
      read_ranks(variables, {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"});
  if (env.world_size > 1 || variables.has("MASTER_ADDR")) {
    read_master(variables, env, "RANK");
  }
  env.agent_serves_store = variables.find("TORCHELASTIC_USE_AGENT_STORE") == "True";
  env.store_prefix = "attempt-" + variables.find("TORCHELASTIC_RESTART_COUNT").value_or("0");
  return env;
}

Environment from_open_mpi(const Variables& variables) {
  Environment env =
      read_ranks(variables, {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"});
  if (variables.has("MASTER_ADDR") || !env.is_one_machine()) {
    read_master(variables, env,
                "mpirun on several machines (pass it on with -x MASTER_ADDR=... -x "
                "MASTER_PORT=...)");
  } else {
    env.store_file = job_file(mpi_job(variables));
  }
  return env;
}

Environment from_slurm(const Variables& variables) {
  Environment env = read_ranks(variables, {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                                           "SLURM_NTASKS_PER_NODE"});
  const int job =
      variables.number("SLURM_JOB_ID", "SLURM_PROCID", 0, std::numeric_limits<int>::max());
  const std::string step = variables.find("SLURM_STEP_ID").value_or("0");
  if (variables.find("SLURM_NNODES").value_or("") == "1") {
    env.local_world_size = env.world_size;
  }
  if (variables.has("MASTER_ADDR")) {
    read_master(variables, env, "MASTER_ADDR");
  } else if (env.is_one_machine()) {
    // A job that is requeued keeps its number.
    const std::string restart = variables.find("SLURM_RESTART_COUNT").value_or("0");
    env.store_file = job_file(c10::str("slurm-", job, "-", step, "-", restart));
  } else {
    env.master_addr =
        first_slurm_host(variables.text("SLURM_STEP_NODELIST", "srun on several machines"));
    // Above the well-known and below the ephemeral ports, different for neighbouring jobs.
    env.master_port = 12000 + job % 20000;
  }
  env.store_prefix = "step-" + step;
  return env;
}

}  // namespace

std::string first_slurm_host(const std::string& node_list) {
  const size_t bracket = node_list.find('[');
  const size_t comma = node_list.find(',');
  if (bracket == std::string::npos || comma < bracket) {
    return node_list.substr(0, comma);
  }
  const size_t end = node_list.find_first_of(",-]", bracket);
  TORCH_CHECK_VALUE(end != std::string::npos && node_list.find(']', bracket) != std::string::npos,
                    "the Slurm node list '", node_list, "' has a '[' without a ']'");
  const size_t after = node_list.find(']', bracket) + 1;
  const std::string suffix = node_list.substr(after, node_list.find(',', after) - after);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, end - bracket - 1) + suffix;
}

Environment read_environment(const VariableLookup& lookup) {
  const Variables variables(lookup ? lookup
                                   : [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
  if (variables.has("FAIRSHARD_STORE_FILE")) {
    return from_launch(variables);
  }
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) {
    return from_torchrun(variables);
  }
  if (variables.has("OMPI_COMM_WORLD_RANK")) {
    return from_open_mpi(variables);
  }
  if (variables.has("SLURM_PROCID")) {
    return from_slurm(variables);
  }
  return {};
}

}  // namespace fairshard::comm

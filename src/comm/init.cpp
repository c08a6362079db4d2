#include "backends.h"
#include "group_state.h"
#include "master_socket.h"
#include "meeting_file.h"
#include <fairshard/comm/init.h>
#include <fairshard/comm/seconds.h>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace fairshard::comm {
namespace {

std::string meeting_point(const Environment& env) {
  return env.store_file.empty()
             ? c10::str("MASTER_ADDR=", env.master_addr, " MASTER_PORT=", env.master_port)
             : "the file " + env.store_file;
}

/// Makes the folder of a store file so that nobody else can write to it.
void make_private_folder(const std::string& store_file) {
  const std::string folder = std::filesystem::path(store_file).parent_path();
  struct stat info {};
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    C10_THROW_ERROR(DistStoreError,
                    c10::str("cannot make the folder ", folder, ": ", std::strerror(errno)));
  }
  const bool is_ours = lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
                       info.st_uid == geteuid() && (info.st_mode & 077) == 0;
  if (!is_ours) {
    C10_THROW_ERROR(DistStoreError, c10::str("the folder ", folder,
                                             " exists but is not this user's alone: remove it"));
  }
}

c10::intrusive_ptr<c10d::Store> open_tcp_store(const Environment& env,
                                               std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(env.master_port);
  options.isServer = env.rank == 0 && !env.agent_serves_store;
  options.waitWorkers = false;
  options.timeout = timeout;
  const bool is_local = env.is_one_machine() && !env.agent_serves_store;
  try {
    if (options.isServer && is_local) {
      options.masterListenFd = listen_on_loopback(env.master_port);
    }
    return connect_in_time(is_local ? kLoopback : env.master_addr, options);
  } catch (const c10::Error& error) {
    const std::string reason = error.what_without_backtrace();
    const std::string line = reason.substr(0, reason.find('\n'));
    C10_THROW_ERROR(DistNetworkError,
                    options.isServer
                        ? c10::str("rank 0 of ", env.world_size, " cannot serve the store at ",
                                   meeting_point(env), ": is the port busy? (", line, ")")
                        : c10::str("rank ", env.rank, " of ", env.world_size,
                                   " cannot reach the store at ", meeting_point(env), ", where ",
                                   env.agent_serves_store ? "torchrun" : "rank 0",
                                   " should serve it (", line, ")"));
  }
}

c10::intrusive_ptr<c10d::Store> open_store(const Environment& env,
                                           std::chrono::milliseconds timeout) {
  c10::intrusive_ptr<c10d::Store> store;
  if (!env.store_file.empty()) {
    make_private_folder(env.store_file);
    store = c10::make_intrusive<MeetingFile>(env.store_file, env.world_size);
  } else if (env.world_size == 1) {
    store = c10::make_intrusive<c10d::HashStore>();
  } else {
    store = open_tcp_store(env, timeout);
  }
  store->setTimeout(timeout);
  return c10::make_intrusive<c10d::PrefixStore>("fairshard/" + env.store_prefix, store);
}

/// Returns when all ranks have signed in, or says who is missing.
void await_all_ranks(const c10::intrusive_ptr<c10d::Store>& store, const Environment& env,
                     std::chrono::milliseconds left, std::chrono::milliseconds timeout) {
  const auto key = [](int rank) { return c10::str("present/", rank); };
  store->set(key(env.rank), "1");
  std::vector<std::string> keys(env.world_size);
  for (int rank = 0; rank < env.world_size; ++rank) {
    keys[rank] = key(rank);
  }
  try {
    store->wait(keys, left);
  } catch (const std::exception& error) {
    std::string missing;
    for (int rank = 0; rank < env.world_size; ++rank) {
      if (!store->check({key(rank)})) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
    const std::string reason = error.what();
    C10_THROW_ERROR(
        DistNetworkError,
        missing.empty()
            ? c10::str("rank ", env.rank, " lost the store at ", meeting_point(env), " (",
                       reason.substr(0, reason.find('\n')), ")")
            : c10::str("rank ", env.rank, " of ", env.world_size, " waited ",
                       static_cast<double>(timeout.count()) / 1000, " s at ", meeting_point(env),
                       " for rank(s) ", missing, ", which did not come"));
  }
  if (env.rank == 0 && !env.store_file.empty()) {
    remove_name(env.store_file);
  }
}

/// NCCL refuses ranks that share a GPU, unless it is told not to.
bool can_share_gpus() {
  const char* const value = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return value && std::string(value) == "1";
}

BackendChoice choose_backends(const Environment& env, const std::string& wanted) {
  using Cuda = BackendChoice::Cuda;
  BackendChoice choice;
  choice.bind = env.is_one_machine() ? "127.0.0.1" : bind_of_environment();
  const int gpus = cuda_device_count();
  const bool has_nccl_for_all = has_nccl() && (env.local_world_size <= gpus || can_share_gpus());
  if (wanted == "nccl" || wanted == "cpu:fairshard,cuda:nccl") {
    TORCH_CHECK_VALUE(gpus > 0, "the backend '", wanted, "' needs a GPU, and there is none");
    choice.cpu = wanted != "nccl";
    choice.cuda = Cuda::kNccl;
  } else if (wanted == "fairshard") {
    choice.cuda = gpus > 0 ? Cuda::kThroughHost : Cuda::kNone;
  } else {
    TORCH_CHECK_VALUE(wanted.empty(), "the backend is '", wanted,
                      "', but must be 'fairshard', 'nccl' or 'cpu:fairshard,cuda:nccl'");
    choice.cuda = gpus == 0 ? Cuda::kNone : has_nccl_for_all ? Cuda::kNccl : Cuda::kThroughHost;
    if (choice.cuda == Cuda::kThroughHost && env.local_rank == 0) {
      TORCH_WARN_ONCE(env.local_world_size, " ranks share ", gpus,
                      " GPU(s), which NCCL refuses: CUDA tensors go through host memory");
    }
  }
  if (gpus > 0) {
    const auto index = static_cast<c10::DeviceIndex>(env.local_rank % gpus);
    c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA)
        .setDevice(c10::Device(c10::DeviceType::CUDA, index));
  }
  return choice;
}

}  // namespace

Group init_process_group(const GroupOptions& options) {
  return init_process_group(read_environment(), options);
}

c10::intrusive_ptr<c10d::Store> meet(const Environment& env, double timeout_s) {
  using Clock = std::chrono::steady_clock;
  const auto timeout = to_timeout(timeout_s);
  const auto deadline = Clock::now() + timeout;
  auto store = open_store(env, timeout);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  await_all_ranks(store, env, std::max(left, std::chrono::milliseconds(1)), timeout);
  return store;
}

Group init_process_group(const Environment& env, const GroupOptions& options) {
  const BackendChoice choice = choose_backends(env, options.backend());
  const auto store = meet(env, options.timeout_s());
  const auto timeout = to_timeout(options.timeout_s());
  try {
    Group group(make_process_group(store, env.rank, env.world_size, choice, timeout));
    group.state().local_rank = env.local_rank;
    return group;
  } catch (const c10::Error& error) {
    C10_THROW_ERROR(DistNetworkError,
                    c10::str("rank ", env.rank, " of ", env.world_size,
                             " could not connect to its peers (GLOO_SOCKET_IFNAME chooses the "
                             "network interface): ",
                             error.what_without_backtrace()));
  }
}

}  // namespace fairshard::comm

#include "backends.h"
#include "group_state.h"
#include <fairshard/comm/launch.h>
#include <fairshard/comm/reason.h>
#include <fairshard/comm/seconds.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <sys/resource.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace fairshard::comm {
namespace {

/// Every pair of ranks has a socket at both ends, which is more than 1024 from 33 ranks on.
void allow_open_files(int ranks) {
  rlimit limit{};
  const auto wanted = static_cast<rlim_t>(ranks) * ranks + 1024;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted) {
    limit.rlim_cur = std::min(wanted, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
}

/// c10d records the last collectives of a process in one place, which was made for one rank in it:
/// as of torch 2.11 it adds to a map without a lock, and with ranks as threads that has crashed.
void record_no_collectives() { setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); }

class FirstFailure {
 public:
  void record(int rank, int ranks, const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (!error_) {
      error_.emplace(rank, ranks, reason);
    }
  }
  void rethrow() const {
    if (error_) {
      throw LaunchError(*error_);
    }
  }

 private:
  std::mutex mutex_;
  std::optional<LaunchError> error_;
};

void run_rank(int rank, int ranks, const c10::intrusive_ptr<c10d::Store>& store,
              const RankFunction& fn, const LaunchOptions& options, FirstFailure& failure) {
  std::optional<Group> group;  // outlives the record: peers notice a failure when it closes
  try {
    BackendChoice choice;
    choice.bind = "127.0.0.1";
    choice.cuda =
        cuda_device_count() > 0 ? BackendChoice::Cuda::kThroughHost : BackendChoice::Cuda::kNone;
    group.emplace(make_process_group(store, rank, ranks, choice, to_timeout(options.timeout_s())));
    group->state().local_rank = rank;
    fn(*group);
    flush(*group);
  } catch (const std::exception& error) {
    failure.record(rank, ranks, reason_of(error));
  } catch (...) {
    failure.record(rank, ranks, "it threw something that is no std::exception");
  }
}

}  // namespace

void launch_threads(int ranks, const RankFunction& fn, const LaunchOptions& options) {
  TORCH_CHECK_VALUE(ranks >= 1, "launch_threads: the number of ranks is ", ranks,
                    ", but must be at least 1");
  allow_open_files(ranks);
  record_no_collectives();
  const auto store = c10::make_intrusive<c10d::HashStore>();
  FirstFailure failure;
  std::vector<std::thread> threads;
  threads.reserve(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { run_rank(rank, ranks, store, fn, options, failure); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  failure.rethrow();
}

}  // namespace fairshard::comm

#pragma once
// Starts ranks on this machine: as processes (what mp.spawn is in Python), or as threads for tests.

#include <fairshard/comm/group.h>

#include <torch/arg.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace fairshard::comm {

/// A rank ended with an exception, an exit code or a signal.
class LaunchError : public std::runtime_error {
 public:
  /// `reason` is what the rank has said, or how it ended.
  LaunchError(int rank, int ranks, const std::string& reason, int signal = 0)
      : std::runtime_error("rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ": " +
                           reason),
        rank_(rank),
        reason_(reason),
        signal_(signal) {}

  /// The rank that failed first.
  int rank() const { return rank_; }
  /// What happened to it, without the rank.
  const std::string& reason() const { return reason_; }
  /// The signal that has ended it, or 0.
  int signal() const { return signal_; }

 private:
  int rank_;
  std::string reason_;
  int signal_;
};

/// What launch() and launch_threads() are given.
struct LaunchOptions {
  // Behaviour
  /// The timeout of the ranks' group, in seconds.
  TORCH_ARG(double, timeout_s) = 300;
  /// What moves tensors; see GroupOptions.
  TORCH_ARG(std::string, backend);
  /// How long other ranks have, after one has failed, to end by themselves before they are killed.
  TORCH_ARG(double, grace_s) = 5;

  // Performance
  /// Threads of ATen per rank; 0 takes OMP_NUM_THREADS, and without that shares the machine's cores
  /// among the ranks.
  TORCH_ARG(int, threads) = 0;
};

/// The threads that a rank has then. Local.
int threads_per_rank(int wanted, int local_ranks);

/// What a rank does, with the group of all ranks.
using RankFunction = std::function<void(Group)>;

/// Runs `fn` in `ranks` child processes, each with the group of all of them, which meet in a
/// private file and speak over loopback only. Returns when all have ended well; throws LaunchError
/// when one has not, after ending the others. Ranks get its SIGTERMs and SIGINTs, one rank that can
/// answer gets the signal of explain_waits_on_signal(), and all die with it. Blocks.
///
/// Call it before the process has started threads of its own (before the first large tensor
/// operation, and before CUDA is used): a forked child has none of them, and this is checked.
void launch(int ranks, const RankFunction& fn, const LaunchOptions& options = {});

/// The same with a thread per rank in this process. For tests: no isolation, one set of globals.
void launch_threads(int ranks, const RankFunction& fn, const LaunchOptions& options = {});

}  // namespace fairshard::comm

#pragma once
// Writes checkpoints: every rank its share, all of it or nothing.

#include <fairshard/comm/group.h>
#include <fairshard/comm/process_owned.h>
#include <fairshard/store/state.h>

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace fairshard::store {

/// What a Saver, or a Checkpoint, is made with.
struct SaverOptions {
  // Behaviour
  /// How many of the newest checkpoints are kept; 0 keeps all.
  TORCH_ARG(int64_t, keep) = 0;
  /// How long any wait for another rank may take, in seconds. It is the time that a slow rank has
  /// to write its share.
  TORCH_ARG(double, timeout_s) = 1800;
  /// At the end, a save that is under way is waited for as long as its files grow, and for so many
  /// seconds in which they do not: a rank that has died must not hold the others.
  TORCH_ARG(double, linger_s) = 30;
};

/// Saves to folders of `root`, which all ranks see. Ranks speak through the group's store and use
/// none of its collectives, so that training may go on meanwhile.
///
/// A checkpoint is written under a temporary name, flushed to disk and renamed in one step:
/// whatever fails, those before it stay, and an incomplete one is never taken for a checkpoint.
/// A rank that fails ends the save on all ranks with its reason; one that dies, after the timeout.
///
/// From its first save on, a run has the folder for itself: another process that would save there
/// is refused, because each would remove what the other has begun. To read is always allowed.
class Saver {
 public:
  /// Without a group: for one process alone. Ranks make their savers in the same order. Local.
  Saver(std::optional<comm::Group> group, std::string root, const SaverOptions& options = {});
  /// Waits for a save that is under way; see linger_s. What that meets, or an earlier one that
  /// nobody waited for has met, is only warned of: wait() throws it.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  const std::string& root() const;
  /// An empty state for this rank to fill.
  State new_state() const;
  /// Returns when the checkpoint is complete. Every rank calls it. Waits for an earlier save first.
  void save(int64_t step, State state);
  /// Copies the state to host memory, which is kept for the next time, and returns; a thread writes
  /// it. Every rank calls it. Waits for an earlier save first, and throws what that has met.
  void save_async(int64_t step, State state);
  /// Makes the folder and takes it for this run, as the first save does, to see at the start
  /// whether that is possible. Every rank calls it, and all throw if rank 0 cannot.
  void claim();
  /// Does `work`, which is local, and throws on all ranks if it throws on one. Every rank calls it.
  void together(const std::function<void()>& work);
  /// The folder of the newest complete checkpoint that rank 0 sees, on all ranks; see
  /// latest_checkpoint(), of which all get the error. Every rank calls it. Waits for an earlier
  /// save first.
  std::optional<std::string> latest();
  /// Returns when no save is under way. Throws what the last asynchronous one has met, once.
  void wait();
  /// Whether wait() would return or throw at once.
  bool is_done() const;

 private:
  class Work;
  comm::ProcessOwned<Work> work_;
};

}  // namespace fairshard::store

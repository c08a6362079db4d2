#pragma once
// Writes checkpoints: every rank its share, all of it or nothing.

#include <fairshard/comm/group.h>
#include <fairshard/store/state.h>

#include <torch/arg.h>

#include <cstdint>
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
};

/// Saves to folders of `root`, which all ranks see. Ranks speak through the group's store and use
/// none of its collectives, so that training may go on meanwhile.
///
/// A checkpoint is written under a temporary name, brought to the disk and renamed in one step:
/// whatever fails, those before it stay, and an incomplete one is never taken for a checkpoint.
/// A rank that fails ends the save on all ranks with its reason; one that dies, after the timeout.
class Saver {
 public:
  /// Without a group: for one process alone. Ranks make their savers in the same order. Local.
  Saver(std::optional<comm::Group> group, std::string root, const SaverOptions& options = {});
  /// Gives up a save that is under way; wait() first, if it is wanted.
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
  /// The folder of the newest complete checkpoint that rank 0 sees, on all ranks; see
  /// latest_checkpoint(). Every rank calls it. Waits for an earlier save first.
  std::optional<std::string> latest();
  /// Returns when no save is under way. Throws what the last asynchronous one has met, once.
  void wait();
  /// Whether wait() would return or throw at once.
  bool is_done() const;

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

}  // namespace fairshard::store

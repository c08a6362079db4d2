#pragma once
// Saving while a run goes on, and going on from what was saved.

#include "../saved_model.h"
#include "options.h"
#include "strategy.h"
#include <fairshard/checkpoint.h>
#include <fairshard/optim/grad_scaler.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fairshard::cli::training {

/// Does nothing without --save. All calls are collective.
class RunCheckpoints {
 public:
  RunCheckpoints(const comm::Group& group, const TrainOptions& options, Strategy& strategy,
                 ShardedGradScaler* scaler);

  /// Takes the folder for this run, or throws.
  void claim();
  /// Loads the newest checkpoint, if there is one, or that of --resume-from; returns its step.
  std::optional<int64_t> resume();

  bool is_due(int64_t step) const {
    return checkpoint_ && save_every_ > 0 && step % save_every_ == 0;
  }
  /// Starts to save; a paged model is saved before this returns. Waits for an earlier save.
  void start(int64_t step);
  /// Saves, unless this step is saved already, and waits.
  void save(int64_t step);
  /// The checkpoints that have become complete since the last call. Does not wait for one that is
  /// under way.
  struct Saved {
    int64_t step;
    std::string folder;
  };
  std::vector<Saved> take_saved() { return std::exchange(complete_, {}); }

 private:
  std::optional<LoadReport> load();
  void finish();
  void note(int64_t step);

  std::string folder_;
  int64_t save_every_;
  std::optional<int64_t> resume_from_;
  bool is_first_rank_;
  Strategy& strategy_;
  /// What values point to.
  SavedModel model_;
  int64_t batch_;
  std::optional<Checkpoint> checkpoint_;
  std::optional<int64_t> under_way_;
  std::vector<Saved> complete_;
  std::optional<int64_t> last_;
};

}  // namespace fairshard::cli::training

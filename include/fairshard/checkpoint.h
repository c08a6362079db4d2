#pragma once
// Checkpoint: everything that a run consists of, saved by N ranks and loaded by M.

#include <fairshard/checkpoint/part.h>
#include <fairshard/comm/group.h>
#include <fairshard/nn/slowmo.h>
#include <fairshard/optim/grad_scaler.h>
#include <fairshard/optim/schedule.h>
#include <fairshard/store/saver.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fairshard {

class OffloadModel;

/// How many are kept, and how long ranks wait for each other.
using CheckpointOptions = store::SaverOptions;
using store::LoadReport;

/// Saves and loads named parts, which stay the caller's and must live as long as this.
///
///   Checkpoint checkpoint(group, "runs/a", CheckpointOptions().keep(3));
///   checkpoint.add("model", *model).add("optimizer", optimizer).add("epoch", &epoch).add_rng();
///   if (const auto report = checkpoint.load()) { step = report->step; }
///   ...
///   checkpoint.save_async(step);
///   ...
///   checkpoint.wait();  // before the program ends
///
/// Every rank makes it, with the same parts in the same order, and calls save, load and wait.
/// Python's fairshard.checkpoint uses the same keys, so that either loads what the other has saved.
class Checkpoint {
 public:
  /// `directory` is that of all of a run's checkpoints, which all ranks see. Local.
  Checkpoint(comm::Group group, const std::string& directory,
             const CheckpointOptions& options = {});
  /// For one process alone.
  explicit Checkpoint(const std::string& directory, const CheckpointOptions& options = {});

  /// Parameters, the same on all ranks, and buffers, of which rank 0's are saved.
  Checkpoint& add(const std::string& name, torch::nn::Module& module);
  /// The same of a model that is paged. It is written from where it is, because a copy would take
  /// as much host memory again: with it, save_async() returns when all is written.
  Checkpoint& add(const std::string& name, torch::nn::Module& module, OffloadModel& offload);
  /// An OSS, or one of torch's or our own optimizers, with its state and options. Its parameters
  /// have the names that they have in the modules which were added.
  Checkpoint& add(const std::string& name, torch::optim::Optimizer& optimizer);
  /// Its scale, and how long it has not changed.
  Checkpoint& add(const std::string& name, ShardedGradScaler& scaler);
  /// Its step.
  Checkpoint& add(const std::string& name, LearningRate& rate);
  /// What a rank needs beside the model and the optimizer, which nodes have each their own: all
  /// parts are then saved for each node, and a run goes on with the same nodes and ranks only.
  Checkpoint& add(const std::string& name, SlowMoBase& slowmo);
  /// A tensor that all ranks have alike.
  Checkpoint& add(const std::string& name, const at::Tensor& tensor);
  /// A value, of which rank 0's is saved.
  /// @{
  Checkpoint& add(const std::string& name, int64_t* value);
  Checkpoint& add(const std::string& name, double* value);
  Checkpoint& add(const std::string& name, bool* value);
  Checkpoint& add(const std::string& name, std::string* value);
  /// @}
  /// The default generators of the CPU and of the GPUs that this process uses, of each rank. A rank
  /// that was not there when it was saved keeps its own.
  Checkpoint& add_rng(const std::string& name = "rng");
  /// Something of your own.
  Checkpoint& add(const std::string& name, std::shared_ptr<CheckpointPart> part);

  /// Returns when the checkpoint is complete.
  void save(int64_t step);
  /// Returns when the state has been copied to host memory. The next save or wait() throws what
  /// the writing has met. Ending without wait() gives up what is under way.
  void save_async(int64_t step);
  /// Returns when no save is under way; throws what the last one has met.
  void wait() { saver_.wait(); }

  /// Loads the newest complete checkpoint; nothing if there is none. Parts of it that were not
  /// added are passed over. With `strict`, keys that are missing or too many are an error that
  /// names them, and nothing is changed. Collective over the groups of OSS's; blocks.
  std::optional<LoadReport> load(bool strict = true);
  /// Loads from the folder of one checkpoint.
  LoadReport load_from(const std::string& directory, bool strict = true);

 private:
  CheckpointContext describe();
  store::State state();

  /// Among the ranks that have parts alike: all, or those of a node.
  int rank_;
  int ranks_;
  /// Of all names, if nodes differ.
  std::string prefix_;
  store::Saver saver_;
  std::vector<std::pair<std::string, std::shared_ptr<CheckpointPart>>> parts_;
};

}  // namespace fairshard

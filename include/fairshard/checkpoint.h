#pragma once
// Checkpoint: everything that a run consists of, saved by N ranks and loaded by M.

#include <fairshard/checkpoint/part.h>
#include <fairshard/checkpoint/value.h>
#include <fairshard/comm/group.h>
#include <fairshard/nn/any_module.h>
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

namespace detail {

std::shared_ptr<CheckpointPart> module_part(torch::nn::Module& module);
std::shared_ptr<CheckpointPart> module_part(torch::nn::Module& module, OffloadModel& offload);

}  // namespace detail

/// What a Checkpoint has an add() for.
template <typename T>
concept Checkpointable =
    AnyModule<T> || std::convertible_to<T&, torch::optim::Optimizer&> ||
    std::convertible_to<T&, ShardedGradScaler&> || std::convertible_to<T&, LearningRate&> ||
    std::convertible_to<T&, SlowMoBase&> || std::convertible_to<T, const at::Tensor&> ||
    (std::is_pointer_v<std::remove_cvref_t<T>> &&
     CheckpointValue<std::remove_pointer_t<std::remove_cvref_t<T>>>) ||
    std::convertible_to<T, std::shared_ptr<CheckpointPart>>;

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
///   checkpoint.wait();  // throws what the save has met; the end of the checkpoint only warns of
///   it
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

  /// Parameters, the same on all ranks, and buffers, of which rank 0's are saved. The module, its
  /// holder, or a shared_ptr to it.
  template <AnyModule Module>
  Checkpoint& add(const std::string& name, const Module& module) {
    return add(name, detail::module_part(module_of(module)));
  }
  /// The same of a model that is paged. It is written from where it is, because a copy would take
  /// as much host memory again: with it, save_async() returns when all is written.
  template <AnyModule Module>
  Checkpoint& add(const std::string& name, const Module& module, OffloadModel& offload) {
    return add(name, detail::module_part(module_of(module), offload));
  }
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
  /// A number, a string, or a vector of these, of which rank 0's is saved.
  template <CheckpointValue Value>
  Checkpoint& add(const std::string& name, Value* value) {
    return add(name, value ? detail::make_value_part(detail::access_to(value)) : nullptr);
  }
  /// The default generators of the CPU and of the GPUs that this process uses, of each rank. A rank
  /// that was not there when it was saved keeps its own.
  Checkpoint& add_rng(const std::string& name = "rng");
  /// Something of your own.
  Checkpoint& add(const std::string& name, std::shared_ptr<CheckpointPart> part);
  /// Says what can be added, in place of a page of what cannot.
  template <typename Other>
    requires(!Checkpointable<Other>)
  Checkpoint& add(const std::string& /*name*/, Other&& /*part*/) {
    static_assert(Checkpointable<Other>,
                  "Checkpoint::add takes a torch::nn module (model or *model), an optimizer, a "
                  "ShardedGradScaler, a LearningRate, a SlowMoDistributedDataParallel, a tensor, a "
                  "pointer to a number, a string or a vector of these, or a "
                  "shared_ptr<CheckpointPart>");
    return *this;
  }

  /// Makes the folder and takes it for this run, as the first save does: throws at once if that is
  /// not possible, or if another run saves there.
  void claim() { saver_.claim(); }
  /// Returns when the checkpoint is complete.
  void save(int64_t step);
  /// Returns when the state has been copied to host memory. The next save or wait() throws what
  /// the writing has met. Ending waits for what is under way, but only warns of what it has met.
  void save_async(int64_t step);
  /// Returns when no save is under way; throws what the last one has met.
  void wait() { saver_.wait(); }

  /// Loads the newest complete checkpoint; nothing if there is none at all. Throws if there are
  /// some but none can be used, and warns if a newer one is passed over. Parts of it that were not
  /// added are passed over. With `strict`, keys that are missing or too many are an error that
  /// names them. All of it is read and compared with its checksums before anything is changed, and
  /// all ranks load or none does. Collective over the groups of OSS's; blocks.
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

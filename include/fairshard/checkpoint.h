#pragma once
// Checkpoint: everything that a run consists of, saved by N ranks and loaded by M.

#include <fairshard/checkpoint/value.h>
#include <fairshard/data/resumable_sampler.h>
#include <fairshard/module/any_module.h>
#include <fairshard/nn/ema.h>
#include <fairshard/nn/slowmo.h>
#include <fairshard/optim/grad_scaler.h>
#include <fairshard/optim/schedule.h>
#include <fairshard/parts/checkpoint_base.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>

namespace fairshard {

class OffloadModel;

/// What a Checkpoint has an add() for.
template <typename T>
concept Checkpointable =
    AnyModule<T> || std::convertible_to<T&, torch::optim::Optimizer&> ||
    std::convertible_to<T&, ShardedGradScaler&> || std::convertible_to<T&, LearningRate&> ||
    std::convertible_to<T&, SlowMoBase&> || std::convertible_to<T&, Ema&> ||
    std::convertible_to<T&, ResumableSampler&> || std::convertible_to<T, const at::Tensor&> ||
    (std::is_pointer_v<std::remove_cvref_t<T>> &&
     CheckpointValue<std::remove_pointer_t<std::remove_cvref_t<T>>>) ||
    std::convertible_to<T, std::shared_ptr<CheckpointPart>>;

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
class Checkpoint : public CheckpointBase {
 public:
  /// `directory` is that of all of a run's checkpoints, which all ranks see. Local.
  Checkpoint(comm::Group group, const std::string& directory, const CheckpointOptions& options = {})
      : CheckpointBase(std::move(group), directory, options) {}
  /// For one process alone.
  explicit Checkpoint(const std::string& directory, const CheckpointOptions& options = {})
      : CheckpointBase(std::nullopt, directory, options) {}

  /// Parameters, the same on all ranks, and buffers, of which rank 0's are saved. The module, its
  /// holder, or a shared_ptr to it.
  template <AnyModule Module>
  Checkpoint& add(const std::string& name, const Module& module) {
    return add_module(name, module_of(module));
  }
  /// The same of a model that is paged. It is written from where it is, because a copy would take
  /// as much host memory again: with it, save_async() returns when all is written.
  template <AnyModule Module>
  Checkpoint& add(const std::string& name, const Module& module, OffloadModel& offload) {
    return add_module(name, module_of(module), &offload);
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
  /// The averages, under their parameters' names, and how many updates they have seen.
  Checkpoint& add(const std::string& name, Ema& ema);
  /// Its seed and position. It must be of as many samples.
  Checkpoint& add(const std::string& name, ResumableSampler& sampler);
  /// A tensor that all ranks have alike.
  Checkpoint& add(const std::string& name, const at::Tensor& tensor);
  /// A number, a string, or a vector of these, of which rank 0's is saved.
  template <CheckpointValue Value>
  Checkpoint& add(const std::string& name, Value* value) {
    return value ? add_value(name, detail::access_to(value))
                 : add(name, std::shared_ptr<CheckpointPart>());
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
                  "ShardedGradScaler, a LearningRate, a SlowMoDistributedDataParallel, an Ema, a "
                  "ResumableSampler, a tensor, a pointer to a number (a long double would be "
                  "rounded), a string or a vector of these, or a shared_ptr<CheckpointPart>");
    return *this;
  }

 private:
  Checkpoint& add_module(const std::string& name, torch::nn::Module& module,
                         OffloadModel* offload = nullptr);
  Checkpoint& add_value(const std::string& name, const detail::ValueAccess& access);
};

}  // namespace fairshard

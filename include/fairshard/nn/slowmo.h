#pragma once
// SlowMoDistributedDataParallel: data parallelism that synchronises nodes rarely.

#include <fairshard/module/any_module.h>
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/outer/slow_loop.h>

#include <torch/optim/optimizer.h>

#include <memory>
#include <utility>
#include <vector>

namespace fairshard {

using outer::SlowMoOptions;

/// What SlowMoDistributedDataParallel does whatever its module is.
class SlowMoBase : private DataParallelBase {
 public:
  /// As in DataParallelBase, inside a node.
  /// @{
  using DataParallelBase::no_sync;
  using DataParallelBase::NoSync;
  using DataParallelBase::reduce;
  using DataParallelBase::zero_grad;
  /// @}

  /// Call it after every step of the optimizer, which must have all trainable parameters of the
  /// module and must not be an OSS, which would bring nodes together in every step. `masters`, if
  /// given, are full-precision values of all parameters, in their order, which the optimizer has
  /// instead. Collective over all ranks; blocks while nodes synchronise.
  outer::StepResult perform_slowmo(torch::optim::Optimizer& optimizer,
                                   const std::vector<at::Tensor>& masters = {});

  /// Makes the parameters of all nodes their average, at the end of training say. Collective over
  /// all ranks; blocks.
  void average_parameters(const std::vector<at::Tensor>& masters = {}) {
    loop_.synchroniser()->average(masters);
  }

  /// Whether there is an outer optimizer, or only averages.
  bool slowmo() const;
  /// As they were settled, with auto_momentum made a number.
  const outer::OuterOptions& outer_options() const { return synchroniser().options(); }
  /// What goes on between nodes.
  const outer::Synchroniser& synchroniser() const { return *loop_.synchroniser(); }
  /// What has been sent so far by this rank, gradients included.
  outer::OuterReport report() const { return synchroniser().report(); }

  /// For checkpoints, beside the module's and the optimizer's: each rank its own. Local.
  outer::OuterState state() const { return synchroniser().state(); }
  /// Takes up what state() gave on this rank. Local.
  void load_state(const outer::OuterState& state) { loop_.synchroniser()->load_state(state); }

 protected:
  /// See SlowMoDistributedDataParallel.
  SlowMoBase(const comm::Group& world, std::shared_ptr<torch::nn::Module> module,
             int ranks_per_node, const SlowMoOptions& options);

  /// Everything that comes before a forward.
  void before_slow_forward();

 private:
  friend class Checkpoint;

  SlowMoBase(comm::Group world, const outer::Nodes& nodes,
             std::shared_ptr<torch::nn::Module> module, const SlowMoOptions& options);

  std::shared_ptr<torch::nn::Module> wrapped_;
  outer::SlowLoop loop_;
  size_t parameters_seen_;
};

/// Wraps a module, given as itself (`*model`), by its holder (`model`: torch::nn::Sequential, or
/// what TORCH_MODULE makes) or by a shared_ptr, and forwards to it. Rank r is on node r /
/// ranks_per_node. Gradients are averaged inside a node in every backward; between nodes something
/// travels only in perform_slowmo(). Construction takes rank 0's parameters and buffers to all, and
/// is collective; so is every backward.
///
///   SlowMoDistributedDataParallel parallel(group, model, 8);
///   loss_of(parallel.forward(input)).backward();
///   optimizer.step();
///   parallel.perform_slowmo(optimizer);
template <AnyModule Module>
class SlowMoDistributedDataParallel : public SlowMoBase {
 public:
  /// A holder or a shared_ptr.
  using Kept = typename detail::KeptModule<Module>::Type;

  /// Collective; blocks.
  template <AnyModuleOf<ModuleClass<Module>> Given>
  SlowMoDistributedDataParallel(const comm::Group& world, const Given& module, int ranks_per_node,
                                const SlowMoOptions& options = {})
      : SlowMoBase(world, shared_module(module), ranks_per_node, options),
        module_(shared_module(module)) {}

  /// The module's own, after what has to come before it.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    before_slow_forward();
    return module_->forward(std::forward<Arguments>(arguments)...);
  }
  /// The same.
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  /// What is wrapped.
  Kept& module() { return module_; }
  /// Leads to the module's members.
  auto* operator->() { return module_.get(); }

 private:
  Kept module_;
};

/// Deduces what the module is held by.
template <AnyModule Given>
SlowMoDistributedDataParallel(const comm::Group&, const Given&,
                              int) -> SlowMoDistributedDataParallel<Given>;
/// The same with options.
template <AnyModule Given>
SlowMoDistributedDataParallel(const comm::Group&, const Given&, int,
                              const SlowMoOptions&) -> SlowMoDistributedDataParallel<Given>;

}  // namespace fairshard

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
class SlowMoBase {
 public:
  SlowMoBase(const SlowMoBase&) = delete;
  SlowMoBase& operator=(const SlowMoBase&) = delete;

  /// Call it after every step of the optimizer, which must have all trainable parameters of the
  /// module: the OSS that was given, or where none was, any other. `masters`, if given, are
  /// full-precision values of all parameters, in their order, which the optimizer has instead.
  /// Collective over all ranks; blocks while nodes synchronise.
  outer::StepResult perform_slowmo(torch::optim::Optimizer& optimizer,
                                   const std::vector<at::Tensor>& masters = {});

  /// Makes the parameters of all nodes their average, at the end of training say. Collective over
  /// all ranks; blocks.
  void average_parameters(const std::vector<at::Tensor>& masters = {}) { loop_.average(masters); }

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
  SlowMoBase(const comm::Group& world, const outer::Nodes& nodes,
             std::shared_ptr<torch::nn::Module> module, const SlowMoOptions& options);
  ~SlowMoBase() = default;

  /// Everything that comes before a forward.
  void before_slow_forward();

  /// Of what goes on within a node.
  static DataParallelOptions node_options(const SlowMoOptions& options, bool has_oss);

 private:
  friend class Checkpoint;

  std::shared_ptr<torch::nn::Module> wrapped_;
  outer::SlowLoop loop_;
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
///
/// With an OSS over the ranks of a node, optimizer state, gradients and outer buffers are sharded
/// there:
///
///   outer::Nodes nodes(group, 8);
///   OSS<AdamW> optimizer(nodes.intra_node(), model, torch::optim::AdamWOptions(1e-3));
///   SlowMoDistributedDataParallel parallel(group, model, nodes, optimizer);
template <AnyModule Module>
class SlowMoDistributedDataParallel : public SlowMoBase {
 public:
  /// A holder or a shared_ptr.
  using Kept = typename detail::KeptModule<Module>::Type;

  /// One OSS, or none.
  using Optimizers = typename ShardedDataParallel<Module>::Optimizers;

  /// For any optimizer of the user's but an OSS. Collective; blocks.
  template <AnyModuleOf<ModuleClass<Module>> Given>
  SlowMoDistributedDataParallel(const comm::Group& world, const Given& module, int ranks_per_node,
                                const SlowMoOptions& options = {})
      : SlowMoDistributedDataParallel(world, module, outer::Nodes(world, ranks_per_node),
                                      Optimizers(), options) {}

  /// With an OSS over the ranks of a node. Collective; blocks.
  template <AnyModuleOf<ModuleClass<Module>> Given>
  SlowMoDistributedDataParallel(const comm::Group& world, const Given& module,
                                const outer::Nodes& nodes, OssBase& optimizer,
                                const SlowMoOptions& options = {})
      : SlowMoDistributedDataParallel(world, module, nodes, Optimizers{optimizer}, options) {}

  /// The same where it is not known when compiled whether there is one. Collective; blocks.
  template <AnyModuleOf<ModuleClass<Module>> Given>
  SlowMoDistributedDataParallel(const comm::Group& world, const Given& module,
                                const outer::Nodes& nodes, const Optimizers& optimizers,
                                const SlowMoOptions& options = {})
      : SlowMoBase(world, nodes, shared_module(module), options),
        parallel_(nodes.intra_node(), module, optimizers,
                  node_options(options, !optimizers.empty())) {}

  /// The module's own, after what has to come before it.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    before_slow_forward();
    return parallel_.forward(std::forward<Arguments>(arguments)...);
  }
  /// The same.
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  /// As in ShardedDataParallel, inside a node.
  /// @{
  [[nodiscard]] DataParallelBase::NoSync no_sync() { return parallel_.no_sync(); }
  void reduce() { parallel_.reduce(); }
  void zero_grad(bool set_to_none = true) { parallel_.zero_grad(set_to_none); }
  /// @}

  /// What is wrapped.
  Kept& module() { return parallel_.module(); }
  /// Leads to the module's members.
  auto* operator->() { return parallel_.operator->(); }

 private:
  ShardedDataParallel<Module> parallel_;
};

/// Deduces what the module is held by.
template <AnyModule Given, typename... Arguments>
SlowMoDistributedDataParallel(const comm::Group&, const Given&,
                              Arguments&&...) -> SlowMoDistributedDataParallel<Given>;

}  // namespace fairshard

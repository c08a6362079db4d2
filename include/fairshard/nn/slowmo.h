#pragma once
// SlowMoDistributedDataParallel: data parallelism that synchronises nodes rarely.

#include <fairshard/nn/any_module.h>
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/outer/synchroniser.h>

#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace fairshard {

/// What a SlowMoDistributedDataParallel is made with.
struct SlowMoOptions {
  // Behaviour
  /// What happens between nodes, and when.
  TORCH_ARG(outer::OuterOptions, outer);
  /// Take the slow momentum that is suggested for the number of nodes.
  TORCH_ARG(bool, auto_momentum) = false;
  /// Before a forward in training a node's ranks take the buffers of its first rank, and with every
  /// exact average nodes take their average.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// Whether a slow step zeroes SGD's momentum; if not given, that of slow momentum does and
  /// Nesterov's does not.
  TORCH_ARG(std::optional<bool>, zero_inner_momentum);
  /// Whether a slow step makes Adam's averages and step count start anew.
  TORCH_ARG(bool, zero_adam) = false;

  // Performance
  /// How much of the gradients travels together inside a node.
  TORCH_ARG(int64_t, bucket_bytes) = 25 << 20;
  /// The dtype in which gradients travel inside a node.
  TORCH_ARG(std::optional<at::ScalarType>, reduce_dtype);
};

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
    synchroniser_->average(masters);
  }

  /// Whether there is an outer optimizer, or only averages.
  bool slowmo() const;
  /// As they were settled, with auto_momentum made a number.
  const outer::OuterOptions& outer_options() const { return synchroniser_->options(); }
  /// What goes on between nodes.
  const outer::Synchroniser& synchroniser() const { return *synchroniser_; }
  /// What has been sent so far by this rank, gradients included.
  outer::OuterReport report() const { return synchroniser_->report(); }

  /// For checkpoints, beside the module's and the optimizer's: each rank its own. Local.
  outer::OuterState state() const { return synchroniser_->state(); }
  /// Takes up what state() gave on this rank. Local.
  void load_state(const outer::OuterState& state) { synchroniser_->load_state(state); }

 protected:
  /// See SlowMoDistributedDataParallel.
  SlowMoBase(const comm::Group& world, std::shared_ptr<torch::nn::Module> module,
             int ranks_per_node, const SlowMoOptions& options);

  /// Everything that comes before a forward.
  void before_slow_forward();

 private:
  SlowMoBase(comm::Group world, const outer::Nodes& nodes,
             std::shared_ptr<torch::nn::Module> module, const SlowMoOptions& options);

  std::vector<double> learning_rates(torch::optim::Optimizer& optimizer,
                                     const std::vector<at::Tensor>& masters) const;
  void zero_inner_state(torch::optim::Optimizer& optimizer, const std::vector<size_t>& stepped,
                        const std::vector<at::Tensor>& masters) const;
  void take_new_parameters();

  comm::Group world_;
  std::shared_ptr<torch::nn::Module> wrapped_;
  SlowMoOptions slowmo_options_;
  std::unique_ptr<outer::Synchroniser> synchroniser_;
  size_t parameters_seen_ = 0;
  int forwards_since_ = 0;
  bool has_warned_ = false;
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

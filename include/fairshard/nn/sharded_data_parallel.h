#pragma once
// ShardedDataParallel: data parallelism for any torch::nn module, with gradients reduced in
// backward.

#include <fairshard/comm/group.h>
#include <fairshard/module/any_module.h>
#include <fairshard/optim/oss.h>
#include <fairshard/shard/data_parallel_engine.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fairshard {

/// What every rank holds, and what it holds only its share of.
enum class DataParallelMode {
  /// Plain data parallelism: averaged gradients in .grad, one whole optimizer on every rank.
  kReplicated,
  /// The same gradients, with an OSS that shards the optimizer state (ZeRO-1).
  kOptimizer,
  /// Each rank gets only the gradients of what its OSS owns; .grad stays empty (ZeRO-2).
  kGradients,
};

/// What a ShardedDataParallel is made with.
struct DataParallelOptions {
  // Behaviour
  /// Which gradients a rank gets.
  TORCH_ARG(DataParallelMode, mode) = DataParallelMode::kGradients;
  /// Rank 0's buffers (BatchNorm's running means, say) go to all ranks when a backward ends.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// Rank 0's parameters and buffers go to all ranks at construction.
  TORCH_ARG(bool, sync_models_at_startup) = true;

  // Performance
  /// How much is communicated together in the replicated mode; otherwise the OSS has set it.
  TORCH_ARG(int64_t, bucket_bytes) = 25 << 20;
  /// The promise that every backward that is reduced uses the same parameters (on a rank; ranks may
  /// differ): saves a message in each. One that breaks it throws.
  TORCH_ARG(bool, static_graph) = false;
  /// How many buckets may be under way at once. Each needs its own memory.
  TORCH_ARG(int, buckets_in_flight) = 2;
  /// The dtype in which gradients travel, for instance at::kBFloat16. Sums are taken in float32
  /// over Gloo.
  TORCH_ARG(std::optional<at::ScalarType>, reduce_dtype);
  /// The module's forward calls wait_for() before each of its blocks, so that with
  /// OssOptions::overlap_gather later blocks may still be on their way. Parameters of no block are
  /// waited for anyway, and a Sequential needs no such help.
  TORCH_ARG(bool, waits_by_block) = false;
};

/// What ShardedDataParallel does whatever its module is: tells a DataParallelEngine of it.
class DataParallelBase {
 public:
  /// While it lives, backward reduces nothing: gradients add up in .grad. The first backward after
  /// it reduces the sum. Ends with its scope, also by an exception.
  class NoSync {
   public:
    /// See no_sync().
    explicit NoSync(DataParallelBase& owner)
        : engine_(owner.engine_), before_(owner.engine_.sync()) {
      engine_.set_sync(false);
    }
    ~NoSync() { engine_.set_sync(before_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    shard::DataParallelEngine& engine_;
    bool before_;
  };
  /// Begins it. The same on all ranks.
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// From here on, backward reduces gradients or not; see no_sync(). The same on all ranks. Local.
  void set_requires_gradient_sync(bool is_on) { engine_.set_sync(is_on); }

  /// Has a hook of torch's DDP average gradients in place of an all-reduce: derive one from
  /// c10d::CppCommHookInterface. Once, the same on all ranks; refused where gradients are sharded.
  /// Collective.
  void register_comm_hook(std::shared_ptr<c10d::CommHookInterface> hook) {
    engine_.set_comm_hook(std::move(hook));
  }

  /// Runs a training loop of which ranks may do different numbers of rounds. A rank whose loop has
  /// ended takes part in what the others do, with gradients of zero (averages are still taken over
  /// all ranks), until all have ended: then this returns, with one model everywhere. Steps,
  /// clipping and reductions may stand in the loop; other collectives may not. Collective.
  void join(const std::function<void()>& loop);

  /// Drops all gradients, also those that were reduced. Local.
  void zero_grad(bool set_to_none = true);

  /// Reduces what is in .grad now, for instance after no_sync(). Collective; blocks.
  void reduce() { engine_.reduce(); }

  /// Returns when the parameters of a block are in place; see OssOptions::overlap_gather.
  void wait_for(const torch::nn::Module& block);
  /// Says that a block which was waited for has run, with this output; see
  /// OssOptions::release_parameters.
  void done_with(const torch::nn::Module& block, const at::Tensor& output);

 protected:
  /// Collective: checks that all ranks have the same parameters.
  DataParallelBase(const comm::Group& group, std::shared_ptr<torch::nn::Module> module,
                   const std::vector<std::reference_wrapper<OssBase>>& optimizers,
                   const DataParallelOptions& options);

  /// Everything that comes before a forward.
  void before_forward();
  /// Everything that comes after it.
  void after_forward();

  /// The same for the output of a Sequential's child.
  void done_with(const torch::nn::Module& block, torch::nn::AnyValue& output);

  /// What it was made with.
  const DataParallelOptions& options() const { return options_; }

 private:
  size_t number_of(const torch::nn::Module& block);
  void tell_blocks();

  std::shared_ptr<torch::nn::Module> module_;
  DataParallelOptions options_;
  shard::DataParallelEngine engine_;
  std::vector<const c10::TensorImpl*> seen_parameters_;
  /// All modules, which ranks number alike, and those that forwards have waited for, in the order
  /// of their first calls.
  std::unordered_map<const torch::nn::Module*, size_t> block_numbers_;
  std::vector<size_t> called_;
  std::vector<bool> is_called_;
  /// Whether the module has ever said that it is done with a block: then it always does.
  bool is_done_with_any_ = false;
};

/// Wraps a module, given as itself (`*model`), by its holder (`model`: torch::nn::Sequential, or
/// what TORCH_MODULE makes) or by a shared_ptr, and forwards to it. Construction is collective, and
/// so is every backward; all ranks do the same number of them.
///
///   OSS<AdamW> optimizer(group, model, torch::optim::AdamWOptions(1e-3));
///   ShardedDataParallel parallel(group, model, optimizer);
///   loss_of(parallel.forward(input)).backward();  // returns with reduced gradients
///   optimizer.step();                             // returns with all parameters in place
template <AnyModule Module>
class ShardedDataParallel : public DataParallelBase {
 public:
  /// A holder or a shared_ptr.
  using Kept = typename detail::KeptModule<Module>::Type;
  /// Several sharded optimizers.
  using Optimizers = std::vector<std::reference_wrapper<OssBase>>;

  /// With one sharded optimizer.
  template <AnyModuleOf<ModuleClass<Module>> Given>
  ShardedDataParallel(const comm::Group& group, const Given& module, OssBase& optimizer,
                      const DataParallelOptions& options = {})
      : ShardedDataParallel(group, module, Optimizers{optimizer}, options) {}

  /// With several, over which the parameters are distributed.
  template <AnyModuleOf<ModuleClass<Module>> Given>
  ShardedDataParallel(const comm::Group& group, const Given& module, const Optimizers& optimizers,
                      const DataParallelOptions& options = {})
      : DataParallelBase(group, shared_module(module), optimizers, options),
        module_(shared_module(module)) {}

  /// Replicated, for any optimizer of the user's.
  template <AnyModuleOf<ModuleClass<Module>> Given>
  ShardedDataParallel(const comm::Group& group, const Given& module)
      : ShardedDataParallel(group, module, Optimizers(),
                            DataParallelOptions().mode(DataParallelMode::kReplicated)) {}

  /// The module's own, after what has to come before it.
  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    before_forward();
    if constexpr (std::is_same_v<ModuleClass<Module>, torch::nn::SequentialImpl>) {
      return forward_by_block(std::forward<Arguments>(arguments)...);
    } else {
      auto result = module_->forward(std::forward<Arguments>(arguments)...);
      after_forward();
      return result;
    }
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
  template <typename... Arguments>
  at::Tensor forward_by_block(Arguments&&... arguments) {
    TORCH_CHECK_VALUE(!module_->is_empty(), "ShardedDataParallel: the Sequential is empty");
    auto block = module_->begin();
    wait_for(*block->ptr());
    auto value = block->any_forward(std::forward<Arguments>(arguments)...);
    done_with(*block->ptr(), value);
    for (++block; block != module_->end(); ++block) {
      wait_for(*block->ptr());
      value = block->any_forward(std::move(value));
      done_with(*block->ptr(), value);
    }
    after_forward();
    return value.template get<at::Tensor>();
  }

  Kept module_;
};

/// Deduces what the module is held by.
template <AnyModule Given, typename... Arguments>
ShardedDataParallel(const comm::Group&, const Given&, Arguments&&...) -> ShardedDataParallel<Given>;
/// The same with several optimizers.
template <AnyModule Given>
ShardedDataParallel(const comm::Group&, const Given&,
                    const std::vector<std::reference_wrapper<OssBase>>&,
                    const DataParallelOptions& = {}) -> ShardedDataParallel<Given>;

}  // namespace fairshard

#pragma once
// ShardedDataParallel: data parallelism for any torch::nn module, with gradients reduced in
// backward.

#include <fairshard/comm/group.h>
#include <fairshard/optim/oss.h>
#include <fairshard/shard/grad_reducer.h>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace fairshard {

enum class DataParallelMode {
  /// Plain data parallelism: averaged gradients in .grad, one whole optimizer on every rank.
  kReplicated,
  /// The same gradients, with an OSS that shards the optimizer state (ZeRO-1).
  kOptimizer,
  /// Each rank gets only the gradients of what its OSS owns; .grad stays empty (ZeRO-2).
  kGradients,
};

struct DataParallelOptions {
  // Behaviour
  TORCH_ARG(DataParallelMode, mode) = DataParallelMode::kGradients;
  /// Rank 0's buffers (BatchNorm's running means, say) go to all ranks before a forward in
  /// training.
  TORCH_ARG(bool, broadcast_buffers) = true;
  /// Rank 0's parameters and buffers go to all ranks at construction.
  TORCH_ARG(bool, sync_models_at_startup) = true;

  // Performance
  /// For the replicated mode; otherwise the OSS has set it.
  TORCH_ARG(int64_t, bucket_bytes) = 25 << 20;
  TORCH_ARG(int, buckets_in_flight) = 2;
};

/// What ShardedDataParallel does whatever its module is.
class DataParallelBase {
 public:
  /// While it lives, backward reduces nothing: gradients add up in .grad. The first backward after
  /// it reduces the sum. Ends with its scope, also by an exception.
  class NoSync {
   public:
    explicit NoSync(DataParallelBase& owner) : owner_(owner) { owner_.set_sync(false); }
    ~NoSync() { owner_.set_sync(true); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallelBase& owner_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// Drops all gradients, also those that were reduced. Local.
  void zero_grad(bool set_to_none = true);

 protected:
  DataParallelBase(comm::Group group, std::shared_ptr<torch::nn::Module> module,
                   const std::vector<std::reference_wrapper<OssBase>>& optimizers,
                   const DataParallelOptions& options);

  /// Everything that comes before a forward.
  void before_forward();

 private:
  void set_sync(bool is_on);
  void sync_buffers();

  comm::Group group_;
  std::shared_ptr<torch::nn::Module> module_;
  DataParallelOptions options_;
  std::vector<std::shared_ptr<shard::FlatParameters>> parts_;
  std::vector<std::unique_ptr<shard::GradReducer>> reducers_;
};

/// Wraps a module holder (torch::nn::Sequential, or what TORCH_MODULE makes) and forwards to it.
/// Construction is collective, and so is every backward; all ranks do the same number of them.
///
///   fairshard::OSS<torch::optim::AdamW> optimizer(group, *model,
///   torch::optim::AdamWOptions(1e-3)); fairshard::ShardedDataParallel parallel(group, model,
///   optimizer); loss_of(parallel.forward(input)).backward();   // gradients are reduced when this
///   returns optimizer.step();                              // parameters are in place when this
///   returns
template <typename Holder>
class ShardedDataParallel : public DataParallelBase {
 public:
  /// With one sharded optimizer.
  ShardedDataParallel(const comm::Group& group, Holder module, OssBase& optimizer,
                      const DataParallelOptions& options = {})
      : ShardedDataParallel(group, std::move(module), {std::ref(optimizer)}, options) {}

  /// With several, which share out the parameters.
  ShardedDataParallel(const comm::Group& group, Holder module,
                      const std::vector<std::reference_wrapper<OssBase>>& optimizers,
                      const DataParallelOptions& options = {})
      : DataParallelBase(group, module.ptr(), optimizers, options), module_(std::move(module)) {}

  /// Replicated, for any optimizer of the user's.
  ShardedDataParallel(const comm::Group& group, Holder module)
      : ShardedDataParallel(group, std::move(module), {},
                            DataParallelOptions().mode(DataParallelMode::kReplicated)) {}

  template <typename... Arguments>
  auto forward(Arguments&&... arguments) {
    before_forward();
    return module_->forward(std::forward<Arguments>(arguments)...);
  }
  template <typename... Arguments>
  auto operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }

  Holder& module() { return module_; }
  auto* operator->() { return module_.get(); }

 private:
  Holder module_;
};

}  // namespace fairshard

#pragma once
// OffloadModel: trains a model that does not fit on the device. Its weights and their gradients are
// in host memory; the device has those of a few slices at a time.

#include <fairshard/module/any_module.h>
#include <fairshard/page/optimizer_worker.h>
#include <fairshard/page/pager.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace fairshard {

/// What an OffloadModel is made with.
struct OffloadOptions {
  // Behaviour
  /// The device that computes.
  TORCH_ARG(at::Device, device) = at::kCPU;
  /// At most; a slice has one block at least.
  TORCH_ARG(int64_t, num_slices) = 3;
  /// Computes a slice's activations again in backward, instead of keeping them.
  TORCH_ARG(bool, checkpoint_activation) = false;
  /// The batch is cut into as many parts (along the first dimension), which every slice computes
  /// one after another.
  TORCH_ARG(int64_t, num_microbatches) = 1;
  /// See page::PagerOptions.
  TORCH_ARG(std::optional<at::ScalarType>, param_dtype);
  /// With checkpoint_activation: the inputs of slices wait for backward in host memory.
  TORCH_ARG(bool, offload_activations) = false;

  // Performance; see page::PagerOptions.
  /// Slices that are copied ahead of the one that computes.
  TORCH_ARG(int64_t, prefetch) = 1;
  /// Device memory for weights.
  TORCH_ARG(std::optional<int64_t>, device_budget_bytes);
  /// Host memory for weights and gradients; slices beyond it lie in files in spill_dir.
  TORCH_ARG(std::optional<int64_t>, host_budget_bytes);
  /// The folder of these files.
  TORCH_ARG(std::string, spill_dir);
  /// Keeps times of all that is done.
  TORCH_ARG(bool, record_spans) = false;
  /// That step, with step_in_backward(); 0: all cores but two.
  TORCH_ARG(int64_t, optimizer_threads) = 0;
};

/// A part of a model that runs after the one before it, with all that it returns.
struct OffloadBlock {
  /// What goes from one block to the next.
  using Values = std::vector<at::Tensor>;
  /// Whose parameters and buffers the block uses.
  std::shared_ptr<torch::nn::Module> module;
  /// What it does.
  std::function<Values(const Values&)> forward;
};

/// Wraps a Sequential or a list of blocks. Between steps the parameters are in host memory, with
/// gradients there, for any optimizer; buffers are on the device.
///
///   OffloadModel offload(model, OffloadOptions().device(at::kCUDA).num_slices(24));
///   torch::optim::AdamW optimizer(model->parameters());
///   loss_of(offload.forward(input)).backward();
///   optimizer.step();
class OffloadModel {
 public:
  /// What blocks take and give.
  using Values = OffloadBlock::Values;

  /// Its modules are the blocks. Throws before anything has changed.
  explicit OffloadModel(const torch::nn::Sequential& model, const OffloadOptions& options = {});
  /// The same for `*model`.
  explicit OffloadModel(torch::nn::SequentialImpl& model, const OffloadOptions& options = {})
      : OffloadModel(torch::nn::Sequential(shared_module(model)), options) {}
  /// Says what to do with another module, in place of a page of what cannot be done.
  template <AnyModule Module>
    requires(!AnyModuleOf<Module, torch::nn::SequentialImpl>)
  explicit OffloadModel(const Module& /*model*/, const OffloadOptions& /*options*/ = {}) {
    static_assert(AnyModuleOf<Module, torch::nn::SequentialImpl>,
                  "OffloadModel takes a torch::nn::Sequential (model or *model), or a "
                  "std::vector<OffloadBlock> that says what the blocks of another module are");
  }
  /// For a model of any other kind.
  explicit OffloadModel(std::vector<OffloadBlock> blocks, const OffloadOptions& options = {});
  ~OffloadModel();

  /// Runs all blocks. What comes in may be on any device; what comes out is on that which computes.
  at::Tensor forward(const at::Tensor& input);
  /// The same for blocks that take or give several tensors.
  Values forward(const Values& inputs);

  /// From now on every backward also steps, slice by slice, on the CPU while earlier slices
  /// compute, and while the first slices of the next forward do. Takes fairshard::AdamW, Adam and
  /// SGD, with their states and with the options that they have at each forward; their step() finds
  /// no gradients and does nothing. The optimizer must live as long as this.
  void step_in_backward(torch::optim::Optimizer& optimizer);
  /// While it is off, gradients add up, and are stepped by the next backward with it on.
  void set_stepping(bool is_on);
  /// Returns when the parameters are stepped: for whoever reads them. forward() waits by itself for
  /// each slice that it comes to.
  void wait_for_step();

  /// What is where, and what was moved since the last forward began.
  page::PagerReport report() { return pager_->report(); }
  /// What does the work.
  page::Pager& pager() { return *pager_; }

 private:
  void plan_step();
  /// As "block.name".
  std::string name_of(const at::Tensor& parameter) const;
  void move_buffers();
  Values run_slice(size_t slice, const Values& inputs);
  Values run_checkpointed(size_t slice, const Values& inputs);

  /// What the blocks were taken from, if it was a Sequential.
  torch::nn::Sequential sequential_{nullptr};
  std::vector<OffloadBlock> blocks_;
  OffloadOptions options_;
  /// Of each slice: its blocks.
  std::vector<std::vector<size_t>> slices_;
  std::shared_ptr<page::Pager> pager_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::unique_ptr<page::OptimizerWorker> worker_;
};

}  // namespace fairshard

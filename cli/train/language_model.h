#pragma once
// What the trainer needs of a language model, whatever it is made of: the strategies know nothing
// else of it.

#include "options.h"
#include <fairshard/nn/offload_model.h>
#include <fairshard/nn/sharded_data_parallel.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <utility>
#include <vector>

namespace fairshard::cli::training {

/// Has the parts of a model under the names that they have there, so that checkpoints and
/// optimizers know no difference.
class LanguageModelImpl : public torch::nn::Module {
 public:
  /// int64 tokens and targets {windows, length}, as the run's text has them, to the mean loss in
  /// nats.
  virtual at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) = 0;
  /// The same through a pager that was made of offload_blocks().
  virtual at::Tensor paged_forward(OffloadModel& pages, const at::Tensor& tokens,
                                   const at::Tensor& targets) = 0;
  virtual std::vector<OffloadBlock> offload_blocks() const = 0;
  /// Computes the activations of blocks again in backward, instead of keeping them.
  virtual void set_checkpoint_activation(bool is_on) = 0;
  /// Tells it where blocks begin and end; see DataParallelOptions::waits_by_block.
  virtual void set_wrapper(DataParallelBase* wrapper) = 0;

  void train(bool is_on = true) override {
    Module::train(is_on);
    network_->train(is_on);  // which may look at itself
  }

 protected:
  /// `network` has no parameters but those of its children.
  explicit LanguageModelImpl(std::shared_ptr<torch::nn::Module> network)
      : network_(std::move(network)) {
    for (const auto& child : network_->named_children()) {
      register_module(child.key(), child.value());
    }
  }

 private:
  std::shared_ptr<torch::nn::Module> network_;
};
TORCH_MODULE(LanguageModel);

/// What a forward gives without gradients and dropout.
template <typename Forward>
at::Tensor evaluated(LanguageModel& model, const Forward& forward) {
  const at::NoGradGuard no_grad;
  model->eval();
  at::Tensor result = forward();
  model->train();
  return result;
}

/// The model that the options name, on the CPU. Random weights follow from the seed.
LanguageModel make_language_model(const TrainOptions& options);

// The kinds that there are, one file each.

/// The byte-level GPT of examples/gpt: a target is the byte after its token.
LanguageModel make_byte_model(const TrainOptions& options);
/// A model of Hugging Face's hub: targets are the tokens themselves, or -100 where nothing is to be
/// learnt.
LanguageModel make_hub_model(const TrainOptions& options);

}  // namespace fairshard::cli::training

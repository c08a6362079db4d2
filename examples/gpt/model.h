#pragma once
// A byte-level, decoder-only GPT: tokens in, logits for each next token out.

#include "gpt/model_options.h"
#include <fairshard/nn/sharded_data_parallel.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace gpt {

/// Attention and a two-layer perceptron, each on normalised input and added to it.
class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const GptOptions& options);
  torch::Tensor forward(const torch::Tensor& input);

 private:
  torch::Tensor attend(const torch::Tensor& input);

  int64_t heads_;
  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear qkv_;
  torch::nn::Linear projection_;
  torch::nn::LayerNorm mlp_norm_;
  torch::nn::Linear expansion_;
  torch::nn::Linear contraction_;
};
TORCH_MODULE(Block);

/// The output layer is the token embedding itself (tied weights).
class GptImpl : public torch::nn::Module {
 public:
  /// Draws the weights from torch's default generator. Throws c10::ValueError for sizes that do
  /// not fit together.
  explicit GptImpl(const GptOptions& options);

  const GptOptions& options() const { return options_; }

  /// int64 tokens {batch, length} to logits {batch, length, vocabulary}.
  torch::Tensor forward(const torch::Tensor& tokens);

  /// Computes the activations of blocks again in backward, instead of keeping them.
  void set_checkpoint_activation(bool is_on) { checkpoints_ = is_on; }

  /// Forward tells the wrapper which block is about to run or has run, so that its parameters can
  /// be gathered just then. The wrapper, made with waits_by_block, must outlive that.
  void set_wrapper(fairshard::DataParallelBase* wrapper) { wrapper_ = wrapper; }

  // What forward consists of: tokens are embedded, pass the blocks, and are read out.

  torch::Tensor embed(const torch::Tensor& tokens);
  std::vector<Block>& blocks() { return blocks_; }
  torch::Tensor read_out(const torch::Tensor& hidden);

 private:
  torch::Tensor run_block(Block block, const torch::Tensor& hidden) const;
  void initialize_();

  GptOptions options_;
  torch::nn::Embedding token_embedding_;
  torch::nn::Embedding position_embedding_;
  std::vector<Block> blocks_;
  torch::nn::LayerNorm final_norm_{nullptr};
  bool checkpoints_ = false;
  fairshard::DataParallelBase* wrapper_ = nullptr;
};
TORCH_MODULE(Gpt);

/// Mean cross entropy per token in nats; `targets` are the tokens that follow those of the logits.
torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& targets);

}  // namespace gpt

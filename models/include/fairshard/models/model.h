#pragma once
// A decoder-only language model, whatever its architecture is: tokens in, logits or a loss out.

#include <fairshard/models/config.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace fairshard {

class DataParallelBase;

namespace models {

/// How queries and keys are turned at each position, {length, head_dim / 2}; undefined in models
/// that add position embeddings instead.
struct Rotation {
  at::Tensor cos;  ///< Cosines of angles.
  at::Tensor sin;  ///< Sines of the same.
};

/// What a block's attention has made of the tokens so far, {batch, heads, length, head_dim};
/// undefined before the first.
struct KeyValues {
  at::Tensor keys;    ///< Keys, turned.
  at::Tensor values;  ///< Values.
};

/// What a model has seen of a text that it is to continue.
struct KeyValueCache {
  std::vector<KeyValues> blocks;  ///< In the order of forward; empty before the first token.
  int64_t length = 0;             ///< Tokens that are in it.
};

/// Attention and a perceptron, each on normalised input and added to it.
class DecoderBlock : public torch::nn::Module {
 public:
  /// {batch, length, hidden_size} to the same. With `seen`, of the tokens that come after those in
  /// it, to which these are added.
  virtual at::Tensor forward(const at::Tensor& hidden, const Rotation& rotation,
                             KeyValues* seen) = 0;
};

/// Its parameters have transformers' names, shapes and order. Local.
class CausalModelImpl : public torch::nn::Module {
 public:
  /// What it was made of.
  const ModelConfig& config() const { return config_; }

  /// int64 tokens {batch, length} to logits {batch, length, vocab_size}.
  at::Tensor forward(const at::Tensor& tokens);
  /// The same as loss(), for wrappers, which pass on what forward() is given.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& labels) {
    return loss(tokens, labels);
  }
  /// The mean cross entropy in nats, in float32, of predicting each label from the tokens before
  /// it, as transformers defines it: `labels` are the tokens themselves, with -100 where nothing is
  /// to be learnt (NaN if that is everywhere). Logits are computed in chunks of positions, and
  /// again in backward, so that they never stand whole in memory.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& labels);
  /// What logits are made of: the last block's output, normalised.
  at::Tensor hidden(const at::Tensor& tokens);
  /// Logits {batch, vocab_size} of the token after `tokens`, which come after those in the cache
  /// and are added to it: first a text, then one token at a time. For what is not training.
  at::Tensor next_logits(const at::Tensor& tokens, KeyValueCache& cache);

  /// Computes the activations of blocks again in backward, instead of keeping them.
  void set_checkpoint_activation(bool is_on) { checkpoints_ = is_on; }
  /// How many positions a chunk of the loss has; 0: as many as make 128 MiB of logits in float32.
  void set_loss_chunk(int64_t positions);
  /// Tells a ShardedDataParallel with DataParallelOptions::waits_by_block where blocks begin and
  /// end, for OssOptions::release_parameters and overlap_gather; nullptr: no longer. It must live
  /// as long as it is told.
  void set_wrapper(DataParallelBase* wrapper) { wrapper_ = wrapper; }

  // What forward consists of: tokens are embedded, pass the blocks, and are read out.

  /// {batch, length, hidden_size} of tokens from position `first` on.
  at::Tensor embed(const at::Tensor& tokens, int64_t first = 0);
  /// For all blocks, of as many positions as `hidden` has, from `first` on.
  virtual Rotation rotation(const at::Tensor& hidden, int64_t first) const;
  /// In the order of forward.
  const std::vector<std::shared_ptr<DecoderBlock>>& blocks() const { return blocks_; }
  /// What comes after the last block.
  virtual at::Tensor norm(const at::Tensor& hidden) = 0;
  /// Of hidden().
  at::Tensor logits(const at::Tensor& hidden) const;
  /// Of hidden(); see loss().
  at::Tensor loss_of(const at::Tensor& hidden, const at::Tensor& labels) const;

  /// Whose parameters embed() uses.
  const std::vector<std::shared_ptr<torch::nn::Module>>& embedding_modules() const {
    return embedding_modules_;
  }
  /// Whose parameters norm(), logits() and loss_of() use.
  const std::vector<std::shared_ptr<torch::nn::Module>>& read_out_modules() const {
    return read_out_modules_;
  }

  /// Draws all weights from torch's default generator, distributed as transformers has it.
  virtual void initialize_();

 protected:
  /// A module and its name in transformers.
  struct NamedModule {
    const char* name = nullptr;                 ///< Without that of what it is in.
    std::shared_ptr<torch::nn::Module> module;  ///< The module.
  };
  /// What a kind of model consists of.
  struct Parts {
    const char* body = nullptr;           ///< The name of what holds all but the head.
    std::vector<NamedModule> embeddings;  ///< First that of tokens.
    const char* list = nullptr;           ///< The name of what holds the blocks.
    std::vector<std::shared_ptr<DecoderBlock>> blocks;  ///< In the order of forward.
    NamedModule norm;                                   ///< What norm() uses.
    at::Tensor token_weight;                            ///< That of the token embedding.
  };

  /// To be followed by set_parts().
  explicit CausalModelImpl(const ModelConfig& config) : config_(config) {}
  /// Ends construction: registers them in the order of forward.
  void set_parts(const Parts& parts);
  /// embed() for tokens of the right kind.
  virtual at::Tensor embed_checked(const at::Tensor& tokens, int64_t first) = 0;

 private:
  at::Tensor run_block(const std::shared_ptr<DecoderBlock>& block, const at::Tensor& hidden,
                       const Rotation& rotation) const;

  ModelConfig config_;
  std::vector<std::shared_ptr<DecoderBlock>> blocks_;
  std::vector<std::shared_ptr<torch::nn::Module>> embedding_modules_;
  std::vector<std::shared_ptr<torch::nn::Module>> read_out_modules_;
  /// Registered by the head, or by the token embedding if they are tied.
  at::Tensor head_weight_;
  bool checkpoints_ = false;
  int64_t loss_chunk_ = 0;
  DataParallelBase* wrapper_ = nullptr;
};

/// Its holder.
TORCH_MODULE(CausalModel);

/// A model with random weights; see CausalModelImpl::initialize_().
CausalModel make_model(const ModelConfig& config, at::ScalarType dtype = at::kFloat);
/// A model whose weights nobody has set, for its names and sizes: memory that is not written costs
/// none.
CausalModel make_unset_model(const ModelConfig& config, at::ScalarType dtype = at::kFloat);

}  // namespace models
}  // namespace fairshard

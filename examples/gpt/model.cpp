#include "gpt/model.h"

#include <fairshard/nn/checkpoint.h>

#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>

#include <cmath>
#include <string>

namespace gpt {
namespace {

constexpr double kInitialDeviation = 0.02;

const GptOptions& checked(const GptOptions& options) {
  const auto check_positive = [](const char* name, int64_t value) {
    TORCH_CHECK_VALUE(value > 0, "GptOptions: ", name, " is ", value, ", but must be positive");
  };
  check_positive("vocabulary", options.vocabulary());
  check_positive("layers", options.layers());
  check_positive("width", options.width());
  check_positive("heads", options.heads());
  check_positive("context", options.context());
  TORCH_CHECK_VALUE(options.width() % options.heads() == 0, "GptOptions: width is ",
                    options.width(), ", which is not a multiple of heads, ", options.heads());
  return options;
}

/// As Python's: the C++ module's own forward adds the bias afterwards, which under autocast takes
/// two copies of the result in float32.
torch::Tensor linear_of(const torch::nn::Linear& layer, const torch::Tensor& input) {
  return at::linear(input, layer->weight, layer->bias);
}

torch::nn::LayerNorm make_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

}  // namespace

BlockImpl::BlockImpl(const GptOptions& options)
    : heads_(options.heads()),
      attention_norm_(register_module("attention_norm", make_norm(options.width()))),
      qkv_(register_module("qkv", torch::nn::Linear(options.width(), 3 * options.width()))),
      projection_(
          register_module("projection", torch::nn::Linear(options.width(), options.width()))),
      mlp_norm_(register_module("mlp_norm", make_norm(options.width()))),
      expansion_(
          register_module("expansion", torch::nn::Linear(options.width(), 4 * options.width()))),
      contraction_(register_module("contraction",
                                   torch::nn::Linear(4 * options.width(), options.width()))) {}

torch::Tensor BlockImpl::attend(const torch::Tensor& input) {
  const auto batch = input.size(0), length = input.size(1), width = input.size(2);
  const auto qkv =
      linear_of(qkv_, input).view({batch, length, 3, heads_, width / heads_}).transpose(1, 3);
  const auto mixed =
      at::scaled_dot_product_attention(qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2),
                                       /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return linear_of(projection_, mixed.transpose(1, 2).reshape({batch, length, width}));
}

torch::Tensor BlockImpl::forward(const torch::Tensor& input) {
  const auto attended = input + attend(attention_norm_(input));
  const auto inner = torch::gelu(linear_of(expansion_, mlp_norm_(attended)));
  return attended + linear_of(contraction_, inner);
}

GptImpl::GptImpl(const GptOptions& options)
    : options_(checked(options)),
      token_embedding_(register_module(
          "token_embedding", torch::nn::Embedding(options.vocabulary(), options.width()))),
      position_embedding_(register_module(
          "position_embedding", torch::nn::Embedding(options.context(), options.width()))) {
  for (int64_t layer = 0; layer < options.layers(); ++layer) {
    blocks_.push_back(register_module("block" + std::to_string(layer), Block(options)));
  }
  // In the order of forward, so that gradients come in the reverse order and fill whole buckets.
  final_norm_ = register_module("final_norm", make_norm(options.width()));
  initialize_();
}

void GptImpl::initialize_() {
  // Two additions per layer go into the residual stream; this keeps its size the same at any depth.
  const double residual_deviation =
      kInitialDeviation / std::sqrt(2.0 * static_cast<double>(options_.layers()));
  for (const auto& item : named_parameters()) {
    const std::string& name = item.key();
    if (item.value().dim() == 1) {
      if (name.ends_with(".bias")) {
        torch::nn::init::zeros_(item.value());
      }
      continue;
    }
    const bool is_residual =
        name.ends_with("projection.weight") || name.ends_with("contraction.weight");
    torch::nn::init::normal_(item.value(), 0, is_residual ? residual_deviation : kInitialDeviation);
  }
}

torch::Tensor GptImpl::embed(const torch::Tensor& tokens) {
  const auto length = tokens.size(-1);
  TORCH_CHECK_VALUE(tokens.dim() == 2 && length <= options_.context(),
                    "Gpt: tokens must be {batch, length} with a length of at most ",
                    options_.context(), ", but are ", tokens.sizes());
  const auto positions = torch::arange(length, tokens.options());
  // One after the other, so that gradients, too, come in the order of registration.
  const auto of_tokens = token_embedding_(tokens);
  return of_tokens + position_embedding_(positions);
}

torch::Tensor GptImpl::read_out(const torch::Tensor& hidden) {
  return at::linear(final_norm_(hidden), token_embedding_->weight);
}

torch::Tensor GptImpl::run_block(Block block, const torch::Tensor& hidden) const {
  if (!checkpoints_) {
    return block(hidden);
  }
  return fairshard::checkpoint([block](const at::Tensor& input) mutable { return block(input); },
                               hidden);
}

torch::Tensor GptImpl::forward(const torch::Tensor& tokens) {
  auto hidden = embed(tokens);
  for (const auto& block : blocks_) {
    if (wrapper_) {
      wrapper_->wait_for(*block);
    }
    hidden = run_block(block, hidden);
    if (wrapper_) {
      wrapper_->done_with(*block, hidden);
    }
  }
  return read_out(hidden);
}

torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
}

}  // namespace gpt

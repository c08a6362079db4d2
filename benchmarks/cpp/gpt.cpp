#include "gpt.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>

namespace bench {
namespace {

constexpr int64_t kBytes = 256;

torch::nn::LayerNorm make_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

}  // namespace

Sizes read_sizes(const fairshard::store::SafetensorsFile& file) {
  const auto number = [&](const std::string& name) {
    return std::stoll(file.header().metadata.at(name));
  };
  return {number("width"), number("layers"), number("heads"), number("length")};
}

BlockImpl::BlockImpl(int64_t width, int64_t heads)
    : heads_(heads),
      before_attention_(register_module("before_attention", make_norm(width))),
      qkv_(register_module("qkv", torch::nn::Linear(width, 3 * width))),
      out_(register_module("out", torch::nn::Linear(width, width))),
      before_mlp_(register_module("before_mlp", make_norm(width))),
      up_(register_module("up", torch::nn::Linear(width, 4 * width))),
      down_(register_module("down", torch::nn::Linear(4 * width, width))) {}

torch::Tensor BlockImpl::forward(const torch::Tensor& input) {
  const auto batch = input.size(0), length = input.size(1), width = input.size(2);
  const auto qkv =
      qkv_(before_attention_(input)).view({batch, length, 3, heads_, -1}).permute({2, 0, 3, 1, 4});
  const auto mixed = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], /*attn_mask=*/{},
                                                      /*dropout_p=*/0.0, /*is_causal=*/true);
  const auto x = input + out_(mixed.transpose(1, 2).reshape({batch, length, width}));
  return x + down_(at::gelu(up_(before_mlp_(x))));
}

GptImpl::GptImpl(const Sizes& sizes)
    : bytes_(register_module("bytes", torch::nn::Embedding(kBytes, sizes.width))),
      positions_(register_module("positions", torch::nn::Embedding(sizes.length, sizes.width))),
      blocks_(register_module("blocks", torch::nn::Sequential())),
      last_norm_(register_module("last_norm", make_norm(sizes.width))),
      head_(register_module("head", torch::nn::Linear(sizes.width, kBytes))) {
  for (int64_t layer = 0; layer < sizes.layers; ++layer) {
    blocks_->push_back(Block(sizes.width, sizes.heads));
  }
}

torch::Tensor GptImpl::forward(const torch::Tensor& text) {
  const auto length = text.size(1) - 1;
  const auto positions = torch::arange(length, text.options());
  const auto x = bytes_(text.narrow(1, 0, length)) + positions_(positions);
  const auto logits = head_(last_norm_(blocks_->forward(x)));
  return at::cross_entropy_loss(logits.flatten(0, 1), text.narrow(1, 1, length).flatten());
}

Gpt load_gpt(const fairshard::store::SafetensorsFile& file) {
  const torch::NoGradGuard no_grad;
  Gpt model(read_sizes(file));
  for (auto& item : model->named_parameters()) {
    item.value().copy_(file.read(item.key()));
  }
  return model;
}

}  // namespace bench

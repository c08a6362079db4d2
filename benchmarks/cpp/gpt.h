#pragma once
// The GPT of benchmarks/gpt.py, with the same names for the same parameters, so that both begin
// with the same weights.

#include <fairshard/store/safetensors.h>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

namespace bench {

struct Sizes {
  int64_t width;
  int64_t layers;
  int64_t heads;
  int64_t length;
};

/// As the Python side has written them beside the weights.
Sizes read_sizes(const fairshard::store::SafetensorsFile& file);

class BlockImpl : public torch::nn::Module {
 public:
  BlockImpl(int64_t width, int64_t heads);
  torch::Tensor forward(const torch::Tensor& input);

 private:
  int64_t heads_;
  torch::nn::LayerNorm before_attention_;
  torch::nn::Linear qkv_;
  torch::nn::Linear out_;
  torch::nn::LayerNorm before_mlp_;
  torch::nn::Linear up_;
  torch::nn::Linear down_;
};
TORCH_MODULE(Block);

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const Sizes& sizes);
  /// The loss of int64 text {batch, length + 1}.
  torch::Tensor forward(const torch::Tensor& text);

 private:
  torch::nn::Embedding bytes_;
  torch::nn::Embedding positions_;
  torch::nn::Sequential blocks_;
  torch::nn::LayerNorm last_norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(Gpt);

/// A model with the weights of a file.
Gpt load_gpt(const fairshard::store::SafetensorsFile& file);

}  // namespace bench

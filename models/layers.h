#pragma once
// The layers that architectures share. Unlike torch::nn's they are made in the model's dtype and
// without random numbers, which a model that is loaded does not need.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace fairshard::models {

class LinearImpl : public torch::nn::Module {
 public:
  LinearImpl(int64_t inputs, int64_t outputs, bool has_bias, at::ScalarType dtype);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(Linear);

class EmbeddingImpl : public torch::nn::Module {
 public:
  /// `padding` is a row that gets no gradient, or -1.
  EmbeddingImpl(int64_t rows, int64_t width, int64_t padding, at::ScalarType dtype);
  at::Tensor forward(const at::Tensor& indices);

  at::Tensor weight;

 private:
  int64_t padding_;
};
TORCH_MODULE(Embedding);

/// Divides by the root of the mean square of the last dimension.
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(int64_t width, double eps, at::ScalarType dtype);
  at::Tensor forward(const at::Tensor& input);

  at::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(RmsNorm);

}  // namespace fairshard::models

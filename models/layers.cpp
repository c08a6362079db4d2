#include "layers.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>

namespace fairshard::models {

LinearImpl::LinearImpl(int64_t inputs, int64_t outputs, bool has_bias, at::ScalarType dtype)
    : weight(register_parameter("weight", at::empty({outputs, inputs}, dtype))),
      bias(register_parameter("bias", has_bias ? at::empty({outputs}, dtype) : at::Tensor(),
                              /*requires_grad=*/has_bias)) {}

at::Tensor LinearImpl::forward(const at::Tensor& input) { return at::linear(input, weight, bias); }

EmbeddingImpl::EmbeddingImpl(int64_t rows, int64_t width, int64_t padding, at::ScalarType dtype)
    : weight(register_parameter("weight", at::empty({rows, width}, dtype))), padding_(padding) {}

at::Tensor EmbeddingImpl::forward(const at::Tensor& indices) {
  return at::embedding(weight, indices, padding_);
}

RmsNormImpl::RmsNormImpl(int64_t width, double eps, at::ScalarType dtype)
    : weight(register_parameter("weight", at::empty({width}, dtype))), eps_(eps) {}

at::Tensor RmsNormImpl::forward(const at::Tensor& input) {
  // Under autocast the input may be narrower than the weight, and ATen wants one dtype.
  return at::rms_norm(input.to(weight.scalar_type()), weight.sizes(), weight, eps_);
}

}  // namespace fairshard::models

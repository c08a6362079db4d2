#pragma once
// Causal attention with rotary embeddings, whose keys and values may have fewer heads than queries.

#include "layers.h"
#include <fairshard/models/model.h>

#include <optional>

namespace fairshard::models {

/// What architectures do differently.
struct AttentionOptions {
  /// Of the layers that make queries, keys and values.
  bool has_bias = false;
  /// Of the layer after them.
  bool has_output_bias = false;
  /// Queries and keys are normalised head by head before they are turned.
  bool has_norms = false;
};

/// Queries, keys and values {batch, heads, length, head_dim} to a mixture of values for each query,
/// of those up to its own position. With `seen`, keys and values come after those in it, and are
/// added to it. Dropout while training; `scale` is 1 / sqrt(head_dim) if it is not given.
at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, KeyValues* seen, double dropout = 0,
                            std::optional<double> scale = {});

class AttentionImpl : public torch::nn::Module {
 public:
  AttentionImpl(const ModelConfig& config, const AttentionOptions& options, at::ScalarType dtype);
  at::Tensor forward(const at::Tensor& hidden, const Rotation& rotation, KeyValues* seen);

 private:
  int64_t head_dim_;
  double dropout_;
  Linear q_proj_;
  Linear k_proj_;
  Linear v_proj_;
  Linear o_proj_;
  RmsNorm q_norm_{nullptr};
  RmsNorm k_norm_{nullptr};
};
TORCH_MODULE(Attention);

}  // namespace fairshard::models

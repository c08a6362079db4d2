#include "attention.h"

#include "rope.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/scaled_dot_product_attention.h>

namespace fairshard::models {

at::Tensor causal_attention(const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, KeyValues* seen, double dropout,
                            std::optional<double> scale) {
  const bool is_continued = seen && seen->keys.defined();
  const at::Tensor all_keys = is_continued ? at::cat({seen->keys, keys}, 2) : keys;
  const at::Tensor all_values = is_continued ? at::cat({seen->values, values}, 2) : values;
  if (seen) {
    *seen = {all_keys, all_values};
  }
  // What is continued has one query, which sees all.
  return at::scaled_dot_product_attention(queries, all_keys, all_values, /*attn_mask=*/{}, dropout,
                                          /*is_causal=*/!is_continued, scale,
                                          /*enable_gqa=*/queries.size(1) != keys.size(1));
}

AttentionImpl::AttentionImpl(const ModelConfig& config, const AttentionOptions& options,
                             at::ScalarType dtype)
    : head_dim_(config.head_dim),
      dropout_(config.attention_dropout),
      q_proj_(config.hidden_size, config.num_attention_heads * head_dim_, options.has_bias, dtype),
      k_proj_(config.hidden_size, config.num_key_value_heads * head_dim_, options.has_bias, dtype),
      v_proj_(config.hidden_size, config.num_key_value_heads * head_dim_, options.has_bias, dtype),
      o_proj_(config.num_attention_heads * head_dim_, config.hidden_size, options.has_output_bias,
              dtype) {
  register_module("q_proj", q_proj_);
  register_module("k_proj", k_proj_);
  register_module("v_proj", v_proj_);
  register_module("o_proj", o_proj_);
  if (options.has_norms) {
    q_norm_ = register_module("q_norm", RmsNorm(head_dim_, config.norm_eps, dtype));
    k_norm_ = register_module("k_norm", RmsNorm(head_dim_, config.norm_eps, dtype));
  }
}

at::Tensor AttentionImpl::forward(const at::Tensor& hidden, const Rotation& rotation,
                                  KeyValues* seen) {
  const auto batch = hidden.size(0), length = hidden.size(1);
  const auto heads_of = [&](Linear& layer) {
    return layer(hidden).view({batch, length, -1, head_dim_});
  };
  at::Tensor queries = heads_of(q_proj_);
  at::Tensor keys = heads_of(k_proj_);
  if (!q_norm_.is_empty()) {
    queries = q_norm_(queries);
    keys = k_norm_(keys);
  }
  const at::Tensor mixed = causal_attention(
      rotated(queries.transpose(1, 2), rotation), rotated(keys.transpose(1, 2), rotation),
      heads_of(v_proj_).transpose(1, 2), seen, is_training() ? dropout_ : 0);
  return o_proj_(mixed.transpose(1, 2).reshape({batch, length, -1}));
}

}  // namespace fairshard::models

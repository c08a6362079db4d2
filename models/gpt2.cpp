#include "gpt2.h"

#include "attention.h"
#include "layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <memory>
#include <vector>

namespace fairshard::models {
namespace {

/// A linear layer whose weight lies transposed, as GPT-2 has it.
class Conv1DImpl : public torch::nn::Module {
 public:
  Conv1DImpl(int64_t inputs, int64_t outputs, at::ScalarType dtype)
      : weight(register_parameter("weight", at::empty({inputs, outputs}, dtype))),
        bias(register_parameter("bias", at::empty({outputs}, dtype))) {}

  at::Tensor forward(const at::Tensor& input) { return at::linear(input, weight.t(), bias); }

  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(Conv1D);

torch::nn::LayerNorm make_norm(const ModelConfig& config, at::ScalarType dtype) {
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({config.hidden_size}).eps(config.norm_eps));
  norm->to(dtype);
  return norm;
}

class Gpt2AttentionImpl : public torch::nn::Module {
 public:
  Gpt2AttentionImpl(const ModelConfig& config, int64_t layer, at::ScalarType dtype)
      : heads_(config.num_attention_heads),
        dropout_(config.attention_dropout),
        residual_dropout_(config.resid_pdrop),
        scale_(config.scale_attn_weights ? 1 / std::sqrt(static_cast<double>(config.head_dim)) : 1),
        c_attn_(config.hidden_size, 3 * config.hidden_size, dtype),
        c_proj_(config.hidden_size, config.hidden_size, dtype) {
    if (config.scale_attn_by_inverse_layer_idx) {
      scale_ /= static_cast<double>(layer + 1);
    }
    register_module("c_attn", c_attn_);
    register_module("c_proj", c_proj_);
  }

  at::Tensor forward(const at::Tensor& hidden, KeyValues* seen) {
    const auto batch = hidden.size(0), length = hidden.size(1), width = hidden.size(2);
    const at::Tensor qkv =
        c_attn_(hidden).view({batch, length, 3, heads_, width / heads_}).transpose(1, 3);
    const at::Tensor mixed = causal_attention(qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2),
                                              seen, is_training() ? dropout_ : 0, scale_);
    const at::Tensor output = c_proj_(mixed.transpose(1, 2).reshape({batch, length, width}));
    return at::dropout(output, residual_dropout_, is_training());
  }

  /// What initialize_() draws otherwise than the rest.
  const at::Tensor& residual_weight() const { return c_proj_->weight; }

 private:
  int64_t heads_;
  double dropout_;
  double residual_dropout_;
  double scale_;
  Conv1D c_attn_;
  Conv1D c_proj_;
};
TORCH_MODULE(Gpt2Attention);

class Gpt2MlpImpl : public torch::nn::Module {
 public:
  Gpt2MlpImpl(const ModelConfig& config, at::ScalarType dtype)
      : approximation_(config.activation_function == "gelu" ? "none" : "tanh"),
        dropout_(config.resid_pdrop),
        c_fc_(config.hidden_size, config.intermediate_size, dtype),
        c_proj_(config.intermediate_size, config.hidden_size, dtype) {
    register_module("c_fc", c_fc_);
    register_module("c_proj", c_proj_);
  }

  at::Tensor forward(const at::Tensor& hidden) {
    const at::Tensor output = c_proj_(at::gelu(c_fc_(hidden), approximation_));
    return at::dropout(output, dropout_, is_training());
  }

  /// What initialize_() draws otherwise than the rest.
  const at::Tensor& residual_weight() const { return c_proj_->weight; }

 private:
  const char* approximation_;
  double dropout_;
  Conv1D c_fc_;
  Conv1D c_proj_;
};
TORCH_MODULE(Gpt2Mlp);

class Gpt2Block final : public DecoderBlock {
 public:
  Gpt2Block(const ModelConfig& config, int64_t layer, at::ScalarType dtype)
      : ln_1_(register_module("ln_1", make_norm(config, dtype))),
        attn_(register_module("attn", Gpt2Attention(config, layer, dtype))),
        ln_2_(register_module("ln_2", make_norm(config, dtype))),
        mlp_(register_module("mlp", Gpt2Mlp(config, dtype))) {}

  at::Tensor forward(const at::Tensor& hidden, const Rotation& /*rotation*/,
                     KeyValues* seen) override {
    const at::Tensor attended = hidden + attn_(ln_1_(hidden), seen);
    return attended + mlp_(ln_2_(attended));
  }

  std::vector<at::Tensor> residual_weights() const {
    return {attn_->residual_weight(), mlp_->residual_weight()};
  }

 private:
  torch::nn::LayerNorm ln_1_;
  Gpt2Attention attn_;
  torch::nn::LayerNorm ln_2_;
  Gpt2Mlp mlp_;
};

class Gpt2ModelImpl final : public CausalModelImpl {
 public:
  Gpt2ModelImpl(const ModelConfig& config, at::ScalarType dtype)
      : CausalModelImpl(config),
        wte_(config.vocab_size, config.hidden_size, /*padding=*/-1, dtype),
        wpe_(config.max_position_embeddings, config.hidden_size, /*padding=*/-1, dtype),
        ln_f_(make_norm(config, dtype)) {
    std::vector<std::shared_ptr<DecoderBlock>> blocks;
    for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
      blocks.push_back(std::make_shared<Gpt2Block>(config, layer, dtype));
    }
    Parts parts;
    parts.body = "transformer";
    parts.embeddings = {{"wte", wte_.ptr()}, {"wpe", wpe_.ptr()}};
    parts.list = "h";
    parts.blocks = blocks;
    parts.norm = {"ln_f", ln_f_.ptr()};
    parts.token_weight = wte_->weight;
    set_parts(parts);
  }

  at::Tensor norm(const at::Tensor& hidden) override { return ln_f_(hidden); }

  /// What a block adds is the smaller the more blocks there are, so that the sum keeps its size.
  void initialize_() override {
    CausalModelImpl::initialize_();
    const at::NoGradGuard no_grad;
    const double deviation = config().initializer_range /
                             std::sqrt(2.0 * static_cast<double>(config().num_hidden_layers));
    for (const auto& block : blocks()) {
      for (at::Tensor& weight : static_cast<Gpt2Block&>(*block).residual_weights()) {
        weight.normal_(0, deviation);
      }
    }
  }

 private:
  at::Tensor embed_checked(const at::Tensor& tokens, int64_t first) override {
    const auto end = first + tokens.size(1);
    TORCH_CHECK_VALUE(end <= config().max_position_embeddings, "gpt2: tokens are ", tokens.sizes(),
                      first > 0 ? c10::str(" after ", first, " others") : "",
                      ", but the model knows ", config().max_position_embeddings, " positions");
    // One after the other, so that gradients, too, come in the order of registration.
    const at::Tensor of_tokens = wte_(tokens);
    const at::Tensor sum = of_tokens + wpe_(at::arange(first, end, tokens.options()));
    return at::dropout(sum, config().embd_pdrop, is_training());
  }

  Embedding wte_;
  Embedding wpe_;
  torch::nn::LayerNorm ln_f_;
};

}  // namespace

void read_gpt2(const ConfigJson& json, ModelConfig& config) {
  config.architecture = "GPT2LMHeadModel";
  config.vocab_size = json.size("vocab_size");
  config.hidden_size = json.size("n_embd");
  config.intermediate_size = json.size("n_inner", 4 * config.hidden_size);
  config.num_hidden_layers = json.size("n_layer");
  config.num_attention_heads = config.num_key_value_heads = json.size("n_head");
  TORCH_CHECK_VALUE(config.hidden_size % config.num_attention_heads == 0, json.what(),
                    ": n_embd is ", config.hidden_size, ", which is not a multiple of n_head, ",
                    config.num_attention_heads);
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.max_position_embeddings = json.size("n_positions", 1024);
  config.norm_eps = json.number("layer_norm_epsilon", 1e-5);
  config.tie_word_embeddings = json.flag("tie_word_embeddings", true);
  config.attention_dropout = json.dropout("attn_pdrop", 0.1);
  config.embd_pdrop = json.dropout("embd_pdrop", 0.1);
  config.resid_pdrop = json.dropout("resid_pdrop", 0.1);
  config.scale_attn_weights = json.flag("scale_attn_weights", true);
  config.scale_attn_by_inverse_layer_idx = json.flag("scale_attn_by_inverse_layer_idx", false);
  config.activation_function = json.text("activation_function", "gelu_new");
  TORCH_CHECK_VALUE(
      config.activation_function == "gelu_new" || config.activation_function == "gelu", json.what(),
      ": activation_function '", config.activation_function,
      "' is not supported; those that are: gelu_new, gelu");
  TORCH_CHECK_VALUE(!json.flag("add_cross_attention", false), json.what(),
                    ": 'add_cross_attention' is not supported");
}

std::shared_ptr<CausalModelImpl> make_gpt2(const ModelConfig& config, at::ScalarType dtype) {
  return std::make_shared<Gpt2ModelImpl>(config, dtype);
}

}  // namespace fairshard::models

#include "chunked_loss.h"
#include "layers.h"
#include <fairshard/models/model.h>
#include <fairshard/nn/checkpoint.h>
#include <fairshard/nn/sharded_data_parallel.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/container/modulelist.h>

namespace fairshard::models {
namespace {

constexpr int64_t kIgnoredLabel = -100;

void check_tokens(const at::Tensor& tokens, const ModelConfig& config) {
  TORCH_CHECK_VALUE(tokens.dim() == 2 && tokens.scalar_type() == at::kLong && tokens.numel() > 0,
                    config.model_type, ": tokens must be int64 {batch, length}, but are ",
                    tokens.scalar_type(), " ", tokens.sizes());
  if (tokens.is_cpu()) {  // a GPU would have to be waited for
    const auto most = tokens.max().item<int64_t>(), least = tokens.min().item<int64_t>();
    TORCH_CHECK_VALUE(0 <= least && most < config.vocab_size, config.model_type,
                      ": tokens must be from 0 to below ", config.vocab_size,
                      ", the vocab_size, but there is a ", least < 0 ? least : most);
  }
}

}  // namespace

void CausalModelImpl::set_parts(const Parts& parts) {
  const auto body = register_module(parts.body, std::make_shared<torch::nn::Module>(parts.body));
  for (const auto& [name, module] : parts.embeddings) {
    embedding_modules_.push_back(body->register_module(name, module));
  }
  torch::nn::ModuleList list;
  for (const auto& block : parts.blocks) {
    list->push_back(block);
  }
  body->register_module(parts.list, list);
  blocks_ = parts.blocks;
  body->register_module(parts.norm.name, parts.norm.module);
  if (config_.tie_word_embeddings) {
    read_out_modules_ = {parts.norm.module, embedding_modules_.front()};
    head_weight_ = parts.token_weight;
  } else {
    const Linear head =
        register_module("lm_head", Linear(config_.hidden_size, config_.vocab_size,
                                          /*has_bias=*/false, parts.token_weight.scalar_type()));
    read_out_modules_ = {parts.norm.module, head.ptr()};
    head_weight_ = head->weight;
  }
}

void CausalModelImpl::initialize_() {
  const at::NoGradGuard no_grad;
  for (const auto& item : named_parameters()) {
    at::Tensor weight = item.value();
    if (item.key().ends_with(".bias")) {
      weight.zero_();
    } else if (weight.dim() == 1) {  // a norm's
      weight.fill_(1);
    } else {
      weight.normal_(0, config_.initializer_range);
    }
  }
  if (config_.pad_token_id >= 0) {
    embedding_modules_.front()->parameters().front()[config_.pad_token_id].zero_();
  }
}

void CausalModelImpl::set_loss_chunk(int64_t positions) {
  TORCH_CHECK_VALUE(positions >= 0, "set_loss_chunk: positions is ", positions,
                    ", but must not be negative");
  loss_chunk_ = positions;
}

Rotation CausalModelImpl::rotation(const at::Tensor& /*hidden*/, int64_t /*first*/) const {
  return {};
}

at::Tensor CausalModelImpl::embed(const at::Tensor& tokens, int64_t first) {
  check_tokens(tokens, config_);
  return embed_checked(tokens, first);
}

at::Tensor CausalModelImpl::run_block(const std::shared_ptr<DecoderBlock>& block,
                                      const at::Tensor& hidden, const Rotation& rotation) const {
  if (!checkpoints_) {
    return block->forward(hidden, rotation, nullptr);
  }
  return checkpoint(
      [block](const at::Tensor& input, const Rotation& turned) {
        return block->forward(input, turned, nullptr);
      },
      hidden, rotation);
}

at::Tensor CausalModelImpl::hidden(const at::Tensor& tokens) {
  at::Tensor values = embed(tokens);
  const Rotation turned = rotation(values, /*first=*/0);
  for (const auto& block : blocks_) {
    if (wrapper_) {
      wrapper_->wait_for(*block);
    }
    values = run_block(block, values, turned);
    if (wrapper_) {
      wrapper_->done_with(*block, values);
    }
  }
  return norm(values);
}

at::Tensor CausalModelImpl::next_logits(const at::Tensor& tokens, KeyValueCache& cache) {
  TORCH_CHECK_VALUE(cache.length == 0 || tokens.size(-1) == 1, config_.model_type,
                    ": next_logits() of ", tokens.sizes(), " tokens after ", cache.length,
                    " others: after the first text one token comes at a time");
  cache.blocks.resize(blocks_.size());
  at::Tensor values = embed(tokens, cache.length);
  const Rotation turned = rotation(values, cache.length);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    values = blocks_[i]->forward(values, turned, &cache.blocks[i]);
  }
  cache.length += tokens.size(-1);
  return logits(norm(values.slice(1, -1))).select(1, 0);
}

at::Tensor CausalModelImpl::logits(const at::Tensor& hidden) const {
  return at::linear(hidden, head_weight_);
}

at::Tensor CausalModelImpl::loss_of(const at::Tensor& hidden, const at::Tensor& labels) const {
  TORCH_CHECK_VALUE(labels.sizes() == hidden.sizes().slice(0, 2), config_.model_type,
                    ": labels are ", labels.sizes(), ", but tokens ", hidden.sizes().slice(0, 2));
  // A position predicts the token after it, and the last one none.
  const at::Tensor next = at::constant_pad_nd(labels, {0, 1}, kIgnoredLabel).slice(1, 1);
  return chunked_cross_entropy(hidden.flatten(0, 1), head_weight_, next.flatten(), loss_chunk_);
}

at::Tensor CausalModelImpl::forward(const at::Tensor& tokens) { return logits(hidden(tokens)); }

at::Tensor CausalModelImpl::loss(const at::Tensor& tokens, const at::Tensor& labels) {
  return loss_of(hidden(tokens), labels);
}

}  // namespace fairshard::models

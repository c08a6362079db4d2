#include "hub_step.h"

#include <algorithm>

namespace fairshard::cli::planning {
namespace {

constexpr int64_t kNarrow = 2;
constexpr int64_t kLabelBytes = 8;
/// As models/ has it.
constexpr int64_t kChunkElements = (128 << 20) / kFloat;

}  // namespace

HubStep::HubStep(const HubStepShape& shape, const ModelShape& model, MemoryLedger& ledger)
    : ModelStep(ledger, shape.recomputed_with),
      shape_(shape),
      model_(model),
      tokens_(shape.windows * model.window()),
      stream_(tokens_ * config().hidden_size * kFloat),
      narrow_(shape.is_mixed ? kNarrow : kFloat) {
  const int64_t positions =
      std::min(tokens_, std::max<int64_t>(kChunkElements / config().vocab_size, 1));
  is_chunked_ = positions < tokens_;
  chunk_ = positions * config().vocab_size * kFloat;
  kept_layer_ = layer_bytes();
  kept_norm_ = norm_bytes(1);
  const int64_t inner = tokens_ * config().intermediate_size * narrow_;
  const bool has_gate = config().model_type != "gpt2";
  beside_layer_ = has_gate ? 2 * inner : inner;
}

/// A norm and the narrow copies of its result, which each of its uses makes.
int64_t HubStep::norm_bytes(int64_t uses) const {
  const int64_t results = shape_.is_mixed ? uses * stream_ / 2 : stream_;
  if (config().model_type == "gpt2") {
    return results + 2 * tokens_ * kFloat;
  }
  return results + (shape_.is_on_host ? stream_ : 0) + tokens_ * kFloat;
}

/// Norms of queries and keys, head by head, which are in float32.
int64_t HubStep::attention_norm_bytes() const {
  const int64_t heads = config().num_attention_heads + config().num_key_value_heads;
  const int64_t copies = shape_.is_on_host ? 2 : 1;
  return tokens_ * heads * (copies * config().head_dim + 1) * kFloat;
}

/// Attention keeps queries, keys, values, its result (turned as well) and the sums of its
/// exponentials; the perceptron its gate before and after the activation, its inner values, and
/// their product. Two values of the residual stream stay: after attention, and after the layer.
int64_t HubStep::rotary_layer_bytes() const {
  const int64_t queries = config().num_attention_heads * config().head_dim;
  const int64_t keys = config().num_key_value_heads * config().head_dim;
  const int64_t attention =
      (3 * queries + 2 * keys) * narrow_ + config().num_attention_heads * kFloat;
  return norm_bytes(3) + norm_bytes(2) + 2 * stream_ +
         tokens_ * (attention + 4 * config().intermediate_size * narrow_) +
         (config().model_type == "qwen3" ? attention_norm_bytes() : 0);
}

int64_t HubStep::layer_bytes() const {
  if (config().model_type != "gpt2") {
    return rotary_layer_bytes();
  }
  const int64_t attention =
      4 * config().hidden_size * narrow_ + config().num_attention_heads * kFloat;
  return 2 * norm_bytes(1) + 2 * stream_ +
         tokens_ * (attention + 2 * config().intermediate_size * narrow_);
}

/// Autocast keeps them until backward.
int64_t HubStep::narrow_weights(int64_t block) const {
  int64_t elements = 0;
  for (const size_t parameter : model_.blocks[block]) {
    elements += model_.parameters[parameter].numel;
  }
  return shape_.is_mixed && block > 0 ? kNarrow * elements : 0;
}

void HubStep::forward(int64_t block) {
  ledger().take(narrow_weights(block));
  if (block == 0) {
    ledger().take(stream_);
  } else if (!is_read_out(block)) {
    ledger().take(kept_layer_);
  } else {
    ledger().take(kept_norm_ + tokens_ * kLabelBytes);
    ledger().take(2 * chunk_);  // logits, and the logarithms of probabilities
    ledger().give(is_chunked_ ? 2 * chunk_ : chunk_);
  }
}

void HubStep::backward_loss_of_chunk() {
  // Chunks add up in one gradient of the head, which is there while the next one is computed.
  const int64_t added = is_chunked_ ? config().vocab_size * config().hidden_size * kFloat : 0;
  ledger().take(added + (is_chunked_ ? 3 * chunk_ : 2 * chunk_));
  ledger().give(added + 3 * chunk_);
  ledger().give(kept_norm_ + tokens_ * kLabelBytes);
}

void HubStep::backward(int64_t block, GradientSink& sink) {
  if (is_read_out(block)) {
    backward_loss_of_chunk();
  } else if (block > 0) {
    ledger().take(beside_layer_);
    ledger().give(beside_layer_);
  }
  ledger().give(narrow_weights(block));
  give_gradients(block, sink);
  // From here on the output of the block before stands for its gradient.
  if (!is_read_out(block)) {
    ledger().give(block == 0 ? stream_ : kept_layer_);
  }
  sink.leave_block(static_cast<size_t>(block));
}

/// A head that is the token embedding.
bool HubStep::is_tied(size_t parameter) const {
  return config().tie_word_embeddings && parameter == model_.blocks.front().front();
}

void HubStep::give_gradients(int64_t block, GradientSink& sink) {
  const auto& parameters = model_.blocks[block];
  for (auto parameter = parameters.rbegin(); parameter != parameters.rend(); ++parameter) {
    const int64_t bytes = model_.parameters[*parameter].numel * kFloat;
    ledger().take(bytes);
    if (is_tied(*parameter) && block > 0) {
      continue;  // it waits for that of the embedding
    }
    if (is_tied(*parameter)) {
      ledger().take(bytes);  // the sum of both
      ledger().give(2 * bytes);
    }
    sink.take_gradient(*parameter, bytes);
  }
}

}  // namespace fairshard::cli::planning

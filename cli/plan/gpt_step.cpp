#include "gpt_step.h"

namespace fairshard::cli::planning {
namespace {

constexpr int64_t kLong = 8;

// Parameters of a layer, from its first.
constexpr size_t kAttentionNorm = 0;
constexpr size_t kQkv = 2;
constexpr size_t kProjection = 4;
constexpr size_t kMlpNorm = 6;
constexpr size_t kExpansion = 8;
constexpr size_t kContraction = 10;

}  // namespace

GptStep::GptStep(const StepShape& shape, MemoryLedger& ledger)
    : ModelStep(ledger, shape.recomputed_with),
      shape_(shape),
      parameters_(shape_of_gpt("", shape.model)),
      tokens_(shape.windows * shape.model.context()),
      stream_(tokens_ * shape.model.width() * kFloat),
      hidden_(shape.is_mixed ? stream_ / 2 : stream_),
      statistics_(2 * tokens_ * kFloat),
      sums_(tokens_ * shape.model.heads() * kFloat),
      logits_(tokens_ * shape.model.vocabulary() * kFloat) {}

int64_t GptStep::output_bytes(int64_t block) const {
  return !is_read_out(block) ? stream_ : shape_.is_mixed ? logits_ / 2 : logits_;
}

void GptStep::cast(int64_t from, int64_t to) {
  if (shape_.is_mixed) {
    ledger().take(to);
    ledger().give(from);
  }
}

/// Two gradients of one tensor become one.
void GptStep::add_gradients(int64_t bytes) {
  ledger().take(bytes);
  ledger().give(2 * bytes);
}

void GptStep::forward(int64_t block) {
  if (block == 0) {
    forward_embeddings();
  } else if (is_read_out(block)) {
    forward_read_out();
  } else {
    forward_layer();
  }
}

void GptStep::forward_embeddings() {
  const int64_t positions = shape_.model.context() * shape_.model.width() * kFloat;
  ledger().take(shape_.model.context() * kLong);
  ledger().take(stream_ + positions);
  ledger().take(stream_);  // their sum
  ledger().give(stream_ + positions);
}

/// Kept until backward: inputs of the norms and of the matrix products, attention's q, k, v, result
/// and sums, the perceptron's inner values before and after gelu, and under autocast the narrow
/// copies of weights.
void GptStep::forward_layer() {
  const int64_t square = shape_.model.width() * shape_.model.width();
  ledger().take(stream_ + statistics_);  // attention_norm
  if (shape_.is_mixed) {
    ledger().take(hidden_ + casts_of(3 * square));
    ledger().give(stream_);
  }
  ledger().take(3 * hidden_);  // qkv
  ledger().take(hidden_ + sums_);
  ledger().take(casts_of(square) + hidden_);  // projection
  ledger().take(stream_);                     // added to the input
  ledger().give(hidden_);
  ledger().take(stream_ + statistics_);  // mlp_norm
  if (shape_.is_mixed) {
    ledger().take(hidden_ + casts_of(4 * square));
    ledger().give(stream_);
  }
  ledger().take(4 * hidden_);  // expansion
  ledger().take(4 * hidden_);  // gelu
  ledger().take(casts_of(4 * square) + hidden_);
  ledger().take(stream_);
  ledger().give(hidden_);
}

void GptStep::forward_read_out() {
  ledger().take(stream_ + statistics_);
  if (shape_.is_mixed) {
    ledger().take(hidden_ + casts_of(parameters_.parameters[kTokenEmbedding].numel));
    ledger().give(stream_);
  }
  ledger().take(output_bytes(shape_.model.layers() + 1));
}

/// Only the logarithms of probabilities are kept.
void GptStep::forward_loss() {
  if (shape_.is_mixed) {
    ledger().take(logits_);
  }
  ledger().take(logits_);
  ledger().give((shape_.is_mixed ? logits_ : 0) + output_bytes(shape_.model.layers() + 1));
}

void GptStep::backward_loss() {
  ledger().take(logits_);  // of the logarithms
  ledger().take(logits_);  // of the logits
  ledger().give(2 * logits_);
  cast(logits_, logits_ / 2);
}

void GptStep::backward(int64_t block, GradientSink& sink) {
  if (block == 0) {
    backward_embeddings(sink);
  } else if (is_read_out(block)) {
    backward_read_out(sink);
  } else {
    backward_layer(first_of_layer(block - 1), sink);
  }
  sink.leave_block(static_cast<size_t>(block));
}

void GptStep::backward_linear(size_t parameter, int64_t gradient_in, int64_t saved,
                              int64_t gradient_out, bool follows_norm, GradientSink& sink) {
  const int64_t weight = parameters_.parameters[parameter].numel;
  const int64_t bias = parameters_.parameters[parameter + 1].numel * kFloat;
  const int64_t narrow = shape_.is_mixed ? 2 * weight : kFloat * weight;
  ledger().take(gradient_in + narrow + bias);
  ledger().give(saved + gradient_out + casts_of(weight));
  if (!shape_.is_mixed) {
    sink.take_gradient(parameter + 1, bias);
    sink.take_gradient(parameter, kFloat * weight);
    return;
  }
  // Autocast casts the bias, the weight and then the input; autograd goes the other way.
  if (follows_norm) {
    cast(hidden_, stream_);
  }
  cast(narrow, kFloat * weight);
  sink.take_gradient(parameter, kFloat * weight);
  sink.take_gradient(parameter + 1, bias);
}

/// From the gradient of a norm's result, in float32, to that of its input.
void GptStep::backward_norm(size_t parameter, GradientSink& sink) {
  const int64_t weight = parameters_.parameters[parameter].numel * kFloat;
  ledger().take(stream_ + 2 * weight);
  ledger().give(stream_ + statistics_ + stream_);
  sink.take_gradient(parameter, weight);
  sink.take_gradient(parameter + 1, weight);
}

void GptStep::backward_read_out(GradientSink& sink) {
  // The weight's gradient waits for that of the embedding, which is the same tensor.
  const int64_t weight = parameters_.parameters[kTokenEmbedding].numel;
  const int64_t narrow = shape_.is_mixed ? 2 * weight : kFloat * weight;
  ledger().take(hidden_ + narrow);
  ledger().give(hidden_ + output_bytes(shape_.model.layers() + 1) + casts_of(weight));
  cast(hidden_, stream_);
  cast(narrow, kFloat * weight);
  backward_norm(first_of_layer(shape_.model.layers()), sink);
}

void GptStep::backward_layer(size_t parameter, GradientSink& sink) {
  const int64_t narrowed = shape_.is_mixed ? hidden_ : 0;  // of the stream's gradient
  ledger().take(narrowed);
  backward_linear(parameter + kContraction, 4 * hidden_, 4 * hidden_, narrowed, false, sink);
  ledger().take(4 * hidden_);  // gelu
  ledger().give(8 * hidden_);
  backward_linear(parameter + kExpansion, hidden_, hidden_, 4 * hidden_, true, sink);
  backward_norm(parameter + kMlpNorm, sink);
  add_gradients(stream_);
  ledger().take(narrowed);
  backward_linear(parameter + kProjection, hidden_, 0, narrowed, false, sink);
  backward_attention(parameter, sink);
  backward_norm(parameter + kAttentionNorm, sink);
  add_gradients(stream_);
}

void GptStep::backward_attention(size_t parameter, GradientSink& sink) {
  ledger().take(3 * hidden_);                    // of q, k and v
  ledger().give(hidden_ + 4 * hidden_ + sums_);  // of the result; then q, k, v and the result
  // Each becomes a part of a whole that is zero elsewhere, and the three are added.
  ledger().take(3 * hidden_);
  ledger().give(hidden_);
  for (int i = 0; i < 2; ++i) {
    ledger().take(3 * hidden_);
    ledger().give(hidden_);
    add_gradients(3 * hidden_);
  }
  ledger().take(3 * hidden_);  // in the order that the product needs
  ledger().give(3 * hidden_);
  backward_linear(parameter + kQkv, hidden_, hidden_, 3 * hidden_, true, sink);
}

void GptStep::backward_embeddings(GradientSink& sink) {
  const int64_t positions = parameters_.parameters[kPositionEmbedding].numel * kFloat;
  const int64_t tokens = parameters_.parameters[kTokenEmbedding].numel * kFloat;
  ledger().take(2 * positions);
  ledger().give(positions + shape_.model.context() * kLong);
  sink.take_gradient(kPositionEmbedding, positions);
  ledger().take(tokens);
  ledger().give(stream_);
  add_gradients(tokens);
  sink.take_gradient(kTokenEmbedding, tokens);
}

}  // namespace fairshard::cli::planning

#include "gpt_step.h"

#include <algorithm>

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
    : shape_(shape),
      parameters_(shape_of_gpt("", shape.model)),
      ledger_(ledger),
      tokens_(shape.windows * shape.model.context()),
      stream_(tokens_ * shape.model.width() * kFloat),
      hidden_(shape.is_mixed ? stream_ / 2 : stream_),
      statistics_(2 * tokens_ * kFloat),
      sums_(tokens_ * shape.model.heads() * kFloat),
      logits_(tokens_ * shape.model.vocabulary() * kFloat) {}

void GptStep::run(GradientSink& sink) {
  const int64_t blocks = shape_.model.layers() + 2;
  for (int64_t first = 0; first < blocks;) {
    const int64_t last = end_of_recomputation(first);
    const int64_t before = ledger_.now();
    for (int64_t block = first; block <= last; ++block) {
      forward(block);
    }
    if (shape_.recomputed_with[first] >= 0) {  // only the result is kept
      ledger_.give(ledger_.now() - before - output_bytes(last));
    }
    first = last + 1;
  }
  forward_loss();
  backward_loss();
  for (int64_t last = blocks - 1; last >= 0;) {
    int64_t first = last;
    while (first > 0 && end_of_recomputation(first - 1) >= last) {
      --first;
    }
    if (shape_.recomputed_with[first] >= 0) {
      backward_again(first, last, sink);
    } else {
      backward(last, sink);
    }
    last = first - 1;
  }
  sink.finish();
}

/// The last of the blocks that are computed again together with this one.
int64_t GptStep::end_of_recomputation(int64_t block) const {
  const auto& with = shape_.recomputed_with;
  auto last = static_cast<size_t>(block);
  while (with[last] >= 0 && last + 1 < with.size() && with[last + 1] == with[last]) {
    ++last;
  }
  return static_cast<int64_t>(last);
}

int64_t GptStep::output_bytes(int64_t block) const {
  return !is_read_out(block) ? stream_ : shape_.is_mixed ? logits_ / 2 : logits_;
}

void GptStep::cast(int64_t from, int64_t to) {
  if (shape_.is_mixed) {
    ledger_.take(to);
    ledger_.give(from);
  }
}

/// Two gradients of one tensor become one.
void GptStep::add_gradients(int64_t bytes) {
  ledger_.take(bytes);
  ledger_.give(2 * bytes);
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
  ledger_.take(shape_.model.context() * kLong);
  ledger_.take(stream_ + positions);
  ledger_.take(stream_);  // their sum
  ledger_.give(stream_ + positions);
}

/// Kept until backward: inputs of the norms and of the matrix products, attention's q, k, v, result
/// and sums, the perceptron's inner values before and after gelu, and under autocast the narrow
/// copies of weights.
void GptStep::forward_layer() {
  const int64_t square = shape_.model.width() * shape_.model.width();
  ledger_.take(stream_ + statistics_);  // attention_norm
  if (shape_.is_mixed) {
    ledger_.take(hidden_ + casts_of(3 * square));
    ledger_.give(stream_);
  }
  ledger_.take(3 * hidden_);  // qkv
  ledger_.take(hidden_ + sums_);
  ledger_.take(casts_of(square) + hidden_);  // projection
  ledger_.take(stream_);                     // added to the input
  ledger_.give(hidden_);
  ledger_.take(stream_ + statistics_);  // mlp_norm
  if (shape_.is_mixed) {
    ledger_.take(hidden_ + casts_of(4 * square));
    ledger_.give(stream_);
  }
  ledger_.take(4 * hidden_);  // expansion
  ledger_.take(4 * hidden_);  // gelu
  ledger_.take(casts_of(4 * square) + hidden_);
  ledger_.take(stream_);
  ledger_.give(hidden_);
}

void GptStep::forward_read_out() {
  ledger_.take(stream_ + statistics_);
  if (shape_.is_mixed) {
    ledger_.take(hidden_ + casts_of(parameters_.parameters[kTokenEmbedding].numel));
    ledger_.give(stream_);
  }
  ledger_.take(output_bytes(shape_.model.layers() + 1));
}

/// Only the logarithms of probabilities are kept.
void GptStep::forward_loss() {
  if (shape_.is_mixed) {
    ledger_.take(logits_);
  }
  ledger_.take(logits_);
  ledger_.give((shape_.is_mixed ? logits_ : 0) + output_bytes(shape_.model.layers() + 1));
}

void GptStep::backward_loss() {
  ledger_.take(logits_);  // of the logarithms
  ledger_.take(logits_);  // of the logits
  ledger_.give(2 * logits_);
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

/// Forward once more; from then on as if nothing had been forgotten. The result is not needed
/// again.
void GptStep::backward_again(int64_t first, int64_t last, GradientSink& sink) {
  for (int64_t block = first; block <= last; ++block) {
    forward(block);
  }
  ledger_.give(output_bytes(last));
  for (int64_t block = last; block >= first; --block) {
    backward(block, sink);
  }
}

void GptStep::backward_linear(size_t parameter, int64_t gradient_in, int64_t saved,
                              int64_t gradient_out, bool follows_norm, GradientSink& sink) {
  const int64_t weight = parameters_.parameters[parameter].numel;
  const int64_t bias = parameters_.parameters[parameter + 1].numel * kFloat;
  const int64_t narrow = shape_.is_mixed ? 2 * weight : kFloat * weight;
  ledger_.take(gradient_in + narrow + bias);
  ledger_.give(saved + gradient_out + casts_of(weight));
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
  ledger_.take(stream_ + 2 * weight);
  ledger_.give(stream_ + statistics_ + stream_);
  sink.take_gradient(parameter, weight);
  sink.take_gradient(parameter + 1, weight);
}

void GptStep::backward_read_out(GradientSink& sink) {
  // The weight's gradient waits for that of the embedding, which is the same tensor.
  const int64_t weight = parameters_.parameters[kTokenEmbedding].numel;
  const int64_t narrow = shape_.is_mixed ? 2 * weight : kFloat * weight;
  ledger_.take(hidden_ + narrow);
  ledger_.give(hidden_ + output_bytes(shape_.model.layers() + 1) + casts_of(weight));
  cast(hidden_, stream_);
  cast(narrow, kFloat * weight);
  backward_norm(first_of_layer(shape_.model.layers()), sink);
}

void GptStep::backward_layer(size_t parameter, GradientSink& sink) {
  const int64_t narrowed = shape_.is_mixed ? hidden_ : 0;  // of the stream's gradient
  ledger_.take(narrowed);
  backward_linear(parameter + kContraction, 4 * hidden_, 4 * hidden_, narrowed, false, sink);
  ledger_.take(4 * hidden_);  // gelu
  ledger_.give(8 * hidden_);
  backward_linear(parameter + kExpansion, hidden_, hidden_, 4 * hidden_, true, sink);
  backward_norm(parameter + kMlpNorm, sink);
  add_gradients(stream_);
  ledger_.take(narrowed);
  backward_linear(parameter + kProjection, hidden_, 0, narrowed, false, sink);
  backward_attention(parameter, sink);
  backward_norm(parameter + kAttentionNorm, sink);
  add_gradients(stream_);
}

void GptStep::backward_attention(size_t parameter, GradientSink& sink) {
  ledger_.take(3 * hidden_);                    // of q, k and v
  ledger_.give(hidden_ + 4 * hidden_ + sums_);  // of the result; then q, k, v and the result
  // Each becomes a part of a whole that is zero elsewhere, and the three are added.
  ledger_.take(3 * hidden_);
  ledger_.give(hidden_);
  for (int i = 0; i < 2; ++i) {
    ledger_.take(3 * hidden_);
    ledger_.give(hidden_);
    add_gradients(3 * hidden_);
  }
  ledger_.take(3 * hidden_);  // in the order that the product needs
  ledger_.give(3 * hidden_);
  backward_linear(parameter + kQkv, hidden_, hidden_, 3 * hidden_, true, sink);
}

void GptStep::backward_embeddings(GradientSink& sink) {
  const int64_t positions = parameters_.parameters[kPositionEmbedding].numel * kFloat;
  const int64_t tokens = parameters_.parameters[kTokenEmbedding].numel * kFloat;
  ledger_.take(2 * positions);
  ledger_.give(positions + shape_.model.context() * kLong);
  sink.take_gradient(kPositionEmbedding, positions);
  ledger_.take(tokens);
  ledger_.give(stream_);
  add_gradients(tokens);
  sink.take_gradient(kTokenEmbedding, tokens);
}

}  // namespace fairshard::cli::planning

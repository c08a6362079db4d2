#pragma once
// What a model is made of; small, for those that need no model.

#include <torch/arg.h>

#include <cstdint>

namespace gpt {

struct GptOptions {
  /// Different tokens; a byte has 256 values.
  TORCH_ARG(int64_t, vocabulary) = 256;
  TORCH_ARG(int64_t, layers) = 4;
  /// Features per token; a multiple of `heads`.
  TORCH_ARG(int64_t, width) = 128;
  TORCH_ARG(int64_t, heads) = 4;
  /// The longest sequence, in tokens.
  TORCH_ARG(int64_t, context) = 128;
};

}  // namespace gpt

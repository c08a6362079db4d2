#pragma once
// Text from a trained model.

#include "gpt/model.h"

#include <cstdint>
#include <functional>
#include <string>

namespace gpt {

struct GenerateOptions {
  /// How many to add to the prompt.
  TORCH_ARG(int64_t, bytes) = 400;
  /// Below 1 likely bytes become more likely; 0 always takes the likeliest.
  TORCH_ARG(double, temperature) = 0.8;
  /// The same seed gives the same text.
  TORCH_ARG(uint64_t, seed) = 0;
};

/// Gives every new byte to `take` as soon as it is drawn. An empty prompt counts as a line's end.
void generate(Gpt& model, const std::string& prompt, const GenerateOptions& options,
              const std::function<void(char)>& take);

}  // namespace gpt

#pragma once
// Texts that a model continues.

#include <fairshard/models/model.h>

#include <torch/arg.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace fairshard::models {

/// What generate() is given.
struct GenerateOptions {
  /// How many tokens to add at most.
  TORCH_ARG(int64_t, tokens) = 100;
  /// Below 1 likely tokens become more likely; 0 always takes the likeliest.
  TORCH_ARG(double, temperature) = 0.8;
  /// The same seed gives the same text.
  TORCH_ARG(uint64_t, seed) = 0;
  /// It ends with any of these.
  TORCH_ARG(std::vector<int64_t>, stop);
};

/// Continues `prompt`, of one token at least, and gives every new token to `take` as soon as it is
/// drawn. What blocks have made of earlier tokens is kept, so that each costs as much as the first.
/// The model evaluates meanwhile, and is then as it was. Local.
void generate(CausalModel& model, const std::vector<int64_t>& prompt,
              const GenerateOptions& options, const std::function<void(int64_t)>& take);

/// One of the numbers that logits {vocabulary} are for, drawn with a number from 0 to below 1; see
/// GenerateOptions::temperature. The same on all devices, unlike torch's multinomial. Local.
int64_t draw_token(const at::Tensor& logits, double temperature, double number);

/// The next number from 0 to below 1 of a generator, the same with every standard library.
template <typename Generator>
double next_fraction(Generator& generator) {
  return static_cast<double>(generator() >> 11) * 0x1.0p-53;
}

}  // namespace fairshard::models

#include "gpt/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <random>
#include <vector>

namespace gpt {
namespace {

/// The model's view of the last bytes, one row.
at::Tensor tokens_of(const std::string& text, int64_t context) {
  const auto length = std::min<int64_t>(static_cast<int64_t>(text.size()), context);
  at::Tensor tokens = at::empty({1, length}, at::kLong);
  auto* const values = tokens.mutable_data_ptr<int64_t>();
  const auto* const last = text.data() + text.size() - length;
  std::transform(last, last + length, values,
                 [](char byte) { return static_cast<int64_t>(static_cast<unsigned char>(byte)); });
  return tokens;
}

/// Draws from the distribution with a number between 0 and 1. Not torch's multinomial, whose
/// numbers differ between devices.
int64_t draw(const at::Tensor& logits, double temperature, double number) {
  if (temperature == 0) {
    return logits.argmax().item<int64_t>();
  }
  const at::Tensor sums = (logits / temperature).softmax(0).cumsum(0).contiguous();
  const auto* const begin = sums.const_data_ptr<double>();
  const auto* const end = begin + sums.numel();
  const auto* const found = std::upper_bound(begin, end, number * *(end - 1));
  return std::min<int64_t>(found - begin, sums.numel() - 1);
}

}  // namespace

void generate(Gpt& model, const std::string& prompt, const GenerateOptions& options,
              const std::function<void(char)>& take) {
  TORCH_CHECK_VALUE(options.temperature() >= 0, "temperature is ", options.temperature(),
                    ", but must not be negative");
  const at::NoGradGuard no_grad;
  std::mt19937_64 generator(options.seed());
  const auto context = model->options().context();
  const auto device = model->parameters().at(0).device();
  std::string text = prompt.empty() ? "\n" : prompt;
  for (int64_t i = 0; i < options.bytes(); ++i) {
    const at::Tensor logits = model->forward(tokens_of(text, context).to(device));
    const at::Tensor last = logits[0][-1].to(at::kCPU, at::kDouble);
    const double number = static_cast<double>(generator() >> 11) * 0x1.0p-53;
    const auto byte = static_cast<char>(draw(last, options.temperature(), number));
    text.push_back(byte);
    take(byte);
  }
}

}  // namespace gpt

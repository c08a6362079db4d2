#include "gpt/generate.h"

#include <fairshard/models/generate.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <random>

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
    const auto byte = static_cast<char>(fairshard::models::draw_token(
        logits[0][-1], options.temperature(), fairshard::models::next_fraction(generator)));
    text.push_back(byte);
    take(byte);
  }
}

}  // namespace gpt

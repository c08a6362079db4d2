#include <fairshard/models/generate.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <random>

namespace fairshard::models {

int64_t draw_token(const at::Tensor& logits, double temperature, double number) {
  const at::Tensor exact = logits.to(at::kCPU, at::kDouble);
  if (temperature == 0) {
    return exact.argmax().item<int64_t>();
  }
  const at::Tensor sums = (exact / temperature).softmax(0).cumsum(0).contiguous();
  const auto* const begin = sums.const_data_ptr<double>();
  const auto* const end = begin + sums.numel();
  const auto* const found = std::upper_bound(begin, end, number * *(end - 1));
  return std::min<int64_t>(found - begin, sums.numel() - 1);
}

void generate(CausalModel& model, const std::vector<int64_t>& prompt,
              const GenerateOptions& options, const std::function<void(int64_t)>& take) {
  TORCH_CHECK_VALUE(options.temperature() >= 0, "temperature is ", options.temperature(),
                    ", but must not be negative");
  TORCH_CHECK_VALUE(!prompt.empty(), "generate: there is no prompt");
  const at::NoGradGuard no_grad;
  const bool was_training = model->is_training();
  model->eval();
  const auto device = model->parameters().at(0).device();
  std::mt19937_64 generator(options.seed());
  KeyValueCache cache;
  std::vector<int64_t> next = prompt;
  for (int64_t i = 0; i < options.tokens(); ++i) {
    const at::Tensor logits =
        model->next_logits(at::tensor(next, at::kLong).unsqueeze(0).to(device), cache);
    const int64_t token =
        draw_token(logits.select(0, 0), options.temperature(), next_fraction(generator));
    take(token);
    if (std::ranges::find(options.stop(), token) != options.stop().end()) {
      break;
    }
    next = {token};
  }
  model->train(was_training);
}

}  // namespace fairshard::models

#include "support/training.h"

#include <c10/util/Exception.h>

#include <mutex>

namespace fairshard::test {

torch::nn::Sequential make_model(uint64_t seed) {
  // Ranks are threads, and the default generator is one for all of them.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  torch::nn::Sequential model(torch::nn::Linear(10, 33), torch::nn::Tanh(),
                              torch::nn::Linear(33, 17), torch::nn::Tanh(),
                              torch::nn::Linear(17, 5));
  model->to(device());
  return model;
}

at::Tensor input(int rank, int step) {
  const at::Tensor numbers = at::arange(60, at::kFloat).view({6, 10});
  return numbers.mul(0.37).add(rank * 1.7 + step * 0.9).sin().to(device());
}

Values values_of(const torch::nn::Module& module) {
  Values values;
  for (const auto& parameter : module.parameters()) {
    values.push_back(parameter.detach().clone());
  }
  return values;
}

void require_same(const Values& ours, const Values& theirs, bool bit_for_bit) {
  TORCH_CHECK(ours.size() == theirs.size(), ours.size(), " values are not ", theirs.size());
  for (size_t i = 0; i < theirs.size(); ++i) {
    TORCH_CHECK(bit_for_bit ? ours[i].equal(theirs[i]) : ours[i].allclose(theirs[i], 1e-4, 1e-6),
                "parameter ", i, " differs by ", (ours[i] - theirs[i]).abs().max().item<float>());
  }
}

}  // namespace fairshard::test

// The fused AdamW against torch::optim's, on 200 tensors of 10,000 elements. Rounds take turns; the
// figures are medians, to be compared with benchmarks/optimizers.py.
#include <fairshard/optim/fused.h>

#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

namespace {

std::vector<at::Tensor> make_parameters() {
  std::vector<at::Tensor> parameters;
  for (int i = 0; i < 200; ++i) {
    parameters.push_back(torch::ones({10000}));
    parameters.back().mutable_grad() = torch::full({10000}, 0.1);
  }
  return parameters;
}

/// Adds the times of some steps in a row, as in training, where nothing else uses this memory.
void take_steps(torch::optim::Optimizer& optimizer, std::vector<double>& seconds) {
  for (int step = 0; step < 10; ++step) {
    const auto start = std::chrono::steady_clock::now();
    optimizer.step();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

int main() {
  const torch::NoGradGuard no_grad;
  const torch::optim::AdamWOptions options(1e-3);
  fairshard::AdamW fused(make_parameters(), options);
  torch::optim::AdamW plain(make_parameters(), options);
  std::vector<double> fused_times;
  std::vector<double> plain_times;
  for (int round = 0; round < 20; ++round) {
    take_steps(fused, fused_times);
    take_steps(plain, plain_times);
  }
  std::printf("fairshard::AdamW     %7.3f ms\n", 1e3 * median(fused_times));
  std::printf("torch::optim::AdamW  %7.3f ms  %.1f times as long\n", 1e3 * median(plain_times),
              median(plain_times) / median(fused_times));
}

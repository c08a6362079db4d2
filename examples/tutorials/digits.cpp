#include "digits.h"

#include <torch/cuda.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace tutorials {

std::vector<Batch> make_dataloader(int rank, at::Device device) {
  constexpr int kBatches = 20;
  torch::manual_seed(0);
  const torch::Tensor patterns = torch::randn({10, 64});
  torch::manual_seed(1 + rank);
  std::vector<Batch> batches;
  for (int i = 0; i < kBatches; ++i) {
    const torch::Tensor target = torch::randint(10, {32}, torch::kLong);
    const torch::Tensor noise = 0.5 * torch::randn({32, 64});
    batches.push_back({(patterns.index_select(0, target) + noise).to(device), target.to(device)});
  }
  return batches;
}

torch::nn::Sequential make_model(at::Device device) {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(64, 128), torch::nn::ReLU(),
                              torch::nn::Linear(128, 10));
  model->to(device);
  return model;
}

at::Device device_of(int rank) {
  const auto gpus = static_cast<int>(torch::cuda::device_count());
  return gpus == 0 ? at::Device(at::kCPU)
                   : at::Device(at::kCUDA, static_cast<at::DeviceIndex>(rank % gpus));
}

void report(int rank, const std::vector<float>& losses, const fairshard::OssBase& optimizer) {
  int64_t owned = 0;
  int64_t all = 0;
  for (const auto& group : optimizer.flat_groups()) {
    for (const auto& slice : group->slices()) {
      owned += slice.values.numel();
    }
    for (const auto& parameter : group->parameters()) {
      all += parameter.tensor.numel();
    }
  }
  std::printf("rank %d: loss %.2f -> %.2f, owns %.0f%% of the optimizer state\n", rank,
              losses.front(), losses.back(),
              100.0 * static_cast<double>(owned) / static_cast<double>(all));
}

int run_ranks(int argc, char** argv, int ranks,
              const std::function<void(fairshard::comm::Group)>& train) {
  try {
    fairshard::comm::launch(argc > 1 ? std::atoi(argv[1]) : ranks, train);
  } catch (const std::exception& error) {
    std::cerr << fairshard::comm::reason_of(error) << "\n";
    return 1;
  }
  return 0;
}

}  // namespace tutorials

// Tutorial 3, OffloadModel, in C++: the twin of offload.py.
//
//   build/bin/fairshard-tutorial-offload
//   loss 2.3x -> 0.x, 3 slices in 3 slots
//
// Computes on a GPU if there is one; the weights are in host memory in any case.
#include "digits.h"
#include <fairshard/amp/autocast.h>
#include <fairshard/nn/offload_model.h>

#include <torch/optim/sgd.h>

#include <cstdio>

namespace {

constexpr int kEpochs = 5;

void train() {
  const at::Device device = tutorials::device_of(0);
  const auto dataloader = tutorials::make_dataloader(0, device);
  torch::nn::Sequential model(torch::nn::Linear(64, 32), torch::nn::Linear(32, 32),
                              torch::nn::Linear(32, 32), torch::nn::Linear(32, 10));

  fairshard::OffloadModel offload(
      model, fairshard::OffloadOptions().device(device).num_slices(3).checkpoint_activation(true));
  // Between steps the parameters and their gradients are in host memory, for any optimizer.
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05));

  std::vector<float> losses;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (const auto& [data, target] : dataloader) {
      optimizer.zero_grad();
      torch::Tensor loss;
      {
        const fairshard::Autocast autocast(device.type());
        loss = torch::nn::functional::cross_entropy(offload.forward(data), target);
      }
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<float>());
    }
  }
  const auto report = offload.report();
  std::printf("loss %.2f -> %.2f, %ld slices in %ld slots\n", losses.front(), losses.back(),
              static_cast<long>(report.slices), static_cast<long>(report.slots));
}

}  // namespace

int main() {
  train();
  return 0;
}

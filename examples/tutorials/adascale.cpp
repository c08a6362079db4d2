// Tutorial 2, AdaScale, in C++: the twin of adascale.py.
//
//   build/bin/fairshard-tutorial-adascale 2
//   rank 0: loss 2.35 -> 0.0x, gain 1.x, 60 steps are worth 7x
//   ...
#include "digits.h"
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/optim/adascale.h>
#include <fairshard/optim/fused.h>

#include <cstdio>

namespace {

constexpr int kEpochs = 3;

void train(fairshard::comm::Group group) {
  const at::Device device = tutorials::device_of(group.rank());
  torch::nn::Sequential model = tutorials::make_model(device);
  const auto dataloader = tutorials::make_dataloader(group.rank(), device);

  // Plain data parallelism: averaged gradients in .grad, one whole optimizer on every rank.
  fairshard::ShardedDataParallel parallel(group, model);
  // An SGD whose learning rate is multiplied by the gain. What follows the options is what the
  // optimizer itself takes.
  fairshard::AdaScale<fairshard::SGD> optimizer(group, fairshard::AdaScaleOptions(),
                                                model->parameters(), torch::optim::SGDOptions(0.1));

  std::vector<float> losses;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (const auto& [data, target] : dataloader) {
      parallel.zero_grad();
      const torch::Tensor loss = torch::nn::functional::cross_entropy(parallel(data), target);
      loss.backward();   // measures how much the ranks' gradients differ
      optimizer.step();  // learning rate x gain
      losses.push_back(loss.item<float>());
    }
  }
  std::printf("rank %d: loss %.2f -> %.2f, gain %.4f, %zu steps are worth %ld\n", group.rank(),
              losses.front(), losses.back(), optimizer.gain(), losses.size(),
              static_cast<long>(optimizer.effective_steps()));
}

}  // namespace

int main(int argc, char** argv) { return tutorials::run_ranks(argc, argv, /*ranks=*/2, train); }

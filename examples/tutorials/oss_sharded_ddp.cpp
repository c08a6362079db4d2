// Tutorial 1, optimizer state sharding, in C++: the twin of oss_sharded_ddp.py.
//
//   build/bin/fairshard-tutorial-oss 2
//   rank 0: loss 2.35 -> 0.0x, owns 50% of the optimizer state
//   ...
#include "digits.h"
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/optim/fused.h>

namespace {

constexpr int kEpochs = 3;

void train(fairshard::comm::Group group) {
  const at::Device device = tutorials::device_of(group.rank());
  torch::nn::Sequential model = tutorials::make_model(device);
  const auto dataloader = tutorials::make_dataloader(group.rank(), device);

  // Wrap a base optimizer into OSS: SGD, or any class of torch::optim.
  fairshard::OSS<fairshard::SGD> optimizer(group, *model,
                                           torch::optim::SGDOptions(0.05).momentum(0.9));
  // Wrap the model into ShardedDataParallel.
  fairshard::ShardedDataParallel parallel(group, model, optimizer);

  // Any training loop: nothing in it is specific to OSS.
  std::vector<float> losses;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (const auto& [data, target] : dataloader) {
      parallel.zero_grad();
      const torch::Tensor loss = torch::nn::functional::cross_entropy(parallel(data), target);
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<float>());
    }
  }
  tutorials::report(group.rank(), losses, optimizer);
}

}  // namespace

int main(int argc, char** argv) { return tutorials::run_ranks(argc, argv, /*ranks=*/2, train); }

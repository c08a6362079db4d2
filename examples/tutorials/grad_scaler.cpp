// Tutorial 0, the sharded grad scaler, in C++: the twin of grad_scaler.py.
//
//   build/bin/fairshard-tutorial-grad-scaler 2
//   rank 0: loss 2.35 -> 0.0x, owns 50% of the optimizer state
//   ...
//
// The Python tutorial calls optimizer.step() on gradients that are still scaled. In C++ that is
// refused: scaler.step(optimizer) and scaler.update() take its place.
#include "digits.h"
#include <fairshard/amp/autocast.h>
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/optim/fused.h>
#include <fairshard/optim/grad_scaler.h>

namespace {

constexpr int kEpochs = 3;

void train(fairshard::comm::Group group) {
  const at::Device device = tutorials::device_of(group.rank());
  torch::nn::Sequential model = tutorials::make_model(device);
  const auto dataloader = tutorials::make_dataloader(group.rank(), device);

  fairshard::OSS<fairshard::SGD> optimizer(group, *model,
                                           torch::optim::SGDOptions(0.05).momentum(0.9));
  fairshard::ShardedDataParallel parallel(group, model, optimizer);
  // One decision for all ranks: if a gradient is infinite on any of them, none makes the step.
  fairshard::ShardedGradScaler scaler(group);

  std::vector<float> losses;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (const auto& [data, target] : dataloader) {
      parallel.zero_grad();
      torch::Tensor loss;
      {
        // Computes in half precision: float16 on a GPU, bfloat16 on a CPU.
        const fairshard::Autocast autocast(device.type());
        loss = torch::nn::functional::cross_entropy(parallel(data), target);
      }
      scaler.scale(loss).backward();
      scaler.step(optimizer);
      scaler.update();
      losses.push_back(loss.item<float>());
    }
  }
  tutorials::report(group.rank(), losses, optimizer);
}

}  // namespace

int main(int argc, char** argv) { return tutorials::run_ranks(argc, argv, /*ranks=*/2, train); }

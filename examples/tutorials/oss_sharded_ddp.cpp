// Tutorial 1, optimizer state sharding, in C++: the twin of oss_sharded_ddp.py.
//
//   build/bin/fairshard-tutorial-oss 2
//   rank 0: loss 2.35 -> 0.0x, owns 50% of the optimizer state
//
// Digits of 8 x 8 pixels are made here (noisy copies of ten random patterns).
#include <fairshard/comm.h>
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/optim/fused.h>
#include <fairshard/optim/oss.h>

#include <torch/nn.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace {

using fairshard::comm::Group;

struct Batch {
  torch::Tensor data;
  torch::Tensor target;
};

std::vector<Batch> make_dataloader(int rank) {
  torch::manual_seed(0);
  const torch::Tensor patterns = torch::randn({10, 64});
  torch::manual_seed(1 + rank);
  std::vector<Batch> batches;
  for (int i = 0; i < 20; ++i) {
    const torch::Tensor target = torch::randint(10, {32}, torch::kLong);
    batches.push_back({patterns.index_select(0, target) + 0.5 * torch::randn({32, 64}), target});
  }
  return batches;
}

void train(Group group, int epochs) {
  torch::nn::Sequential model(torch::nn::Linear(64, 128), torch::nn::ReLU(),
                              torch::nn::Linear(128, 10));
  // SGD, or any class of torch::optim.
  fairshard::OSS<fairshard::SGD> optimizer(group, *model,
                                           torch::optim::SGDOptions(0.05).momentum(0.9));
  fairshard::ShardedDataParallel parallel(group, model, optimizer);

  std::vector<float> losses;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (const auto& [data, target] : make_dataloader(group.rank())) {
      parallel.zero_grad();
      const torch::Tensor loss = torch::nn::functional::cross_entropy(parallel(data), target);
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<float>());
    }
  }

  int64_t owned = 0;
  for (const auto& slice : optimizer.parts()[0]->slices()) {
    owned += slice.values.numel();
  }
  int64_t all = 0;
  for (const auto& parameter : model->parameters()) {
    all += parameter.numel();
  }
  std::printf("rank %d: loss %.2f -> %.2f, owns %.0f%% of the optimizer state\n", group.rank(),
              losses.front(), losses.back(),
              100.0 * static_cast<double>(owned) / static_cast<double>(all));
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  try {
    fairshard::comm::launch(ranks, [](Group group) { train(group, /*epochs=*/3); });
  } catch (const std::exception& error) {
    std::cerr << fairshard::comm::reason_of(error) << "\n";
    return 1;
  }
  return 0;
}

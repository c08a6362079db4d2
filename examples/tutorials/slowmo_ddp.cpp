// Tutorial 4, SlowMo distributed data parallelism, in C++: the twin of slowmo_ddp.py.
//
//   build/bin/fairshard-tutorial-slowmo 4
//   rank 0: loss 2.35 -> 0.0x, synchronised nodes 20 times in 60 steps
//   ...
//
// Ranks are taken as nodes of two. The slow momentum is left at its default, so one warning says
// what suits so few nodes.
#include "digits.h"
#include <fairshard/nn/slowmo.h>
#include <fairshard/optim/fused.h>

#include <cstdio>

namespace {

constexpr int kEpochs = 3;
constexpr int kRanksPerNode = 2;

void train(fairshard::comm::Group group) {
  const at::Device device = tutorials::device_of(group.rank());
  torch::nn::Sequential model = tutorials::make_model(device);
  const auto dataloader = tutorials::make_dataloader(group.rank(), device);

  fairshard::SlowMoDistributedDataParallel parallel(group, model, kRanksPerNode);
  fairshard::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));

  std::vector<float> losses;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    for (const auto& [data, target] : dataloader) {
      parallel.zero_grad();
      const torch::Tensor loss = torch::nn::functional::cross_entropy(parallel(data), target);
      loss.backward();  // averages gradients inside the node
      optimizer.step();
      parallel.perform_slowmo(optimizer);  // between nodes, when it is due
      losses.push_back(loss.item<float>());
    }
  }
  const auto report = parallel.report();
  std::printf("rank %d: loss %.2f -> %.2f, synchronised nodes %ld times in %ld steps\n",
              group.rank(), losses.front(), losses.back(), static_cast<long>(report.averages),
              static_cast<long>(report.calls));
  parallel.average_parameters();  // one model on all nodes
}

}  // namespace

int main(int argc, char** argv) { return tutorials::run_ranks(argc, argv, /*ranks=*/4, train); }

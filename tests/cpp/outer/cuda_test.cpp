// Two nodes on one GPU train as two nodes on the CPU do. Where there is no GPU, the same on the
// CPU. Ranks are processes: autograd has one thread for a GPU, and ranks as threads would wait for
// each other on it.
#include "support/training.h"
#include <fairshard/nn/slowmo.h>

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace fairshard {
namespace cuda_test {

using comm::Group;
using outer::OuterOptimizerKind;
using outer::OuterOptions;
using torch::nn::Sequential;

test::Values train(const Group& group, const OuterOptions& outer, at::Device device) {
  auto model = test::make_model();
  model->to(device);
  SlowMoDistributedDataParallel<Sequential> parallel(group, model, 1, SlowMoOptions().outer(outer));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  for (int step = 0; step < 13; ++step) {
    parallel.zero_grad();
    test::loss_of(parallel.forward(test::input(group.rank(), step).to(device))).backward();
    optimizer.step();
    parallel.perform_slowmo(optimizer);
  }
  parallel.average_parameters();
  test::Values values;
  for (const auto& value : test::values_of(*model)) {
    values.push_back(value.cpu());
  }
  return values;
}

TEST(CudaSlowMo, TrainsAsOnTheCpu) {
  const auto slow = OuterOptions().slow_frequency(4).average_frequency(2).momentum(0.6);
  const auto streaming = OuterOptions()
                             .optimizer(OuterOptimizerKind::kNesterov)
                             .slow_frequency(6)
                             .fragments(2)
                             .delay(2)
                             .local_weight(0.5);
  const auto gossip = OuterOptions(slow).base(outer::BaseAlgorithm::kSgp).overlap_gossip(true);
  comm::launch(2, [&](Group group) {
    const at::Device device = at::hasCUDA() ? at::Device("cuda:0") : at::Device("cpu");
    for (const auto& options : {slow, streaming, gossip}) {
      const auto on_cpu = train(group, options, at::kCPU);
      test::require_same(train(group, options, device), on_cpu, false);
      test::require_same(train(group, OuterOptions(options).host_memory(true), device), on_cpu,
                         false);
    }
  });
}

}  // namespace cuda_test
}  // namespace fairshard

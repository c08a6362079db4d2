// Communication hooks of torch's DDP on buckets of ours.
#include "support/expect_error.h"
#include "support/training.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace fairshard {
namespace comm_hook_test {

using comm::Group;
using torch::optim::SGDOptions;
using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

/// The plainest of hooks.
class Average : public c10d::CppCommHookInterface<ProcessGroupPtr> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    std::vector<at::Tensor> tensors{bucket.getBufferRef().div_(state_->getSize())};
    return state_->allreduce(tensors)->getFuture();
  }
};

TEST(CommHook, AveragesInPlaceOfTheAllReduce) {
  test::run_ranks(2, [](const Group& group) {
    auto model = test::make_model(group.rank());
    ShardedDataParallel<torch::nn::Sequential> parallel(group, model);
    parallel.register_comm_hook(std::make_shared<Average>(group.process_group()));
    torch::optim::SGD optimizer(model->parameters(), SGDOptions(0.1));
    for (int step = 0; step < test::kSteps; ++step) {
      optimizer.zero_grad();
      test::loss_of(parallel.forward(test::input(group.rank(), step))).backward();
      optimizer.step();
    }
    test::require_same(test::values_of(*model),
                       test::train_plainly<torch::optim::SGD>(group, SGDOptions(0.1)), true);
  });
}

TEST(CommHook, IsRefusedWhereGradientsAreSharded) {
  test::run_ranks(2, [](const Group& group) {
    auto model = test::make_model();
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1));
    ShardedDataParallel<torch::nn::Sequential> parallel(group, model, optimizer);
    test::expect_error(
        [&] { parallel.register_comm_hook(std::make_shared<Average>(group.process_group())); },
        {"averages whole gradients", "are sharded by an OSS"});
  });
}

}  // namespace comm_hook_test
}  // namespace fairshard

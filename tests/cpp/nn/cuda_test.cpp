// Sharded training of two ranks on one GPU, and models that are moved late. Where there is no GPU,
// the same on the CPU. Ranks are processes: autograd has one thread for a GPU, and ranks as
// threads would wait for each other on it.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/optim/fused.h>

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cmath>

namespace fairshard {
namespace cuda_test {

using comm::Group;
using torch::nn::Sequential;
using torch::optim::AdamWOptions;

at::Device device() { return at::hasCUDA() ? at::Device("cuda:0") : at::Device("cpu"); }

TEST(CudaTraining, TwoRanksOnOneDeviceTrainAsOneOnTheUnion) {
  for (const bool overlaps : {false, true}) {
    comm::launch(2, [&](Group group) {
      auto model = test::make_model();
      auto twin = test::make_model();
      model->to(device());
      twin->to(device());
      OSS<AdamW> optimizer(group, *model, AdamWOptions(1e-2),
                           OssOptions(test::kSmallBuckets).overlap_gather(overlaps));
      AdamW plain(twin->parameters(), AdamWOptions(1e-2));
      ShardedDataParallel<Sequential> parallel(group, model, optimizer);
      for (int step = 0; step < 5; ++step) {
        const auto data = [&](int rank) { return test::input(rank, step).to(device()); };
        optimizer.zero_grad();
        test::loss_of(parallel.forward(data(group.rank()))).backward();
        const at::Tensor norm = optimizer.clip_grad_norm(0.1);
        optimizer.step();
        plain.zero_grad();
        ((test::loss_of(twin->forward(data(0))) + test::loss_of(twin->forward(data(1)))) / 2)
            .backward();
        const double expected = torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.1);
        plain.step();
        TORCH_CHECK(std::abs(norm.item<double>() - expected) < 1e-4, norm, " is not ", expected);
      }
      optimizer.wait_for_parameters();
      test::require_same(test::values_of(*model), test::values_of(*twin), false);
    });
  }
}

TEST(CudaTraining, AModelThatIsMovedAfterItWasShardedTrainsThere) {
  comm::launch(1, [&](Group group) {
    auto model = test::make_model();
    auto twin = test::make_model();
    OSS<AdamW> optimizer(group, *model, AdamWOptions(1e-2));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    model->to(device());
    twin->to(device());
    AdamW plain(twin->parameters(), AdamWOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      const at::Tensor data = test::input(0, step).to(device());
      optimizer.zero_grad();
      test::loss_of(parallel.forward(data)).backward();
      optimizer.step();
      plain.zero_grad();
      test::loss_of(twin->forward(data)).backward();
      plain.step();
    }
    test::require_same(test::values_of(*model), test::values_of(*twin), false);
  });
}

TEST(CudaTraining, AModelOfWhichAPartIsMovedAfterItWasShardedIsRefused) {
  comm::launch(1, [&](Group group) {
    auto model = test::make_model();
    OSS<AdamW> optimizer(group, *model, AdamWOptions(1e-2));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    (*model->begin()).ptr()->to(device());
    const std::string error =
        test::error_of([&] { parallel.forward(test::input(0, 0).to(device())); });
    TORCH_CHECK(error.empty() == !at::hasCUDA(), error);
    TORCH_CHECK(error.empty() || error.find("move all parameters alike") != std::string::npos,
                error);
  });
}

}  // namespace cuda_test
}  // namespace fairshard

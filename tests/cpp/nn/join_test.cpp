// Ranks that do different numbers of rounds, against a simulation in one place.
#include "support/training.h"

#include <gtest/gtest.h>

namespace fairshard {
namespace join_test {

using comm::Group;
using torch::nn::Sequential;
using torch::optim::SGDOptions;

void require_equal_on_all_ranks(Group group, const test::Values& values) {
  for (const at::Tensor& value : values) {
    const at::Tensor zeros = value.clone();
    comm::broadcast(group, zeros, 0).wait();
    TORCH_CHECK(value.equal(zeros), "rank ", group.rank(), " has another model");
  }
}

TEST(Join, RanksWithoutInputsCountAsZeros) {
  const std::vector<int> rounds{4, 0, 2};
  test::run_ranks(3, [&](Group group) {
    auto model = test::make_model();
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.5).momentum(0.9),
                                     test::kSmallBuckets);
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    torch::optim::StepLR schedule(optimizer, 1, 0.5);
    parallel.join([&] {
      for (int step = 0; step < rounds[group.rank()]; ++step) {
        optimizer.zero_grad();
        test::loss_of(parallel.forward(test::input(group.rank(), step))).backward();
        optimizer.clip_grad_norm(0.05);
        optimizer.step();
        schedule.step();
      }
    });
    auto twin = test::make_model();
    torch::optim::SGD plain(twin->parameters(), SGDOptions(0.5).momentum(0.9));
    torch::optim::StepLR plain_schedule(plain, 1, 0.5);
    for (int step = 0; step < 4; ++step) {
      plain.zero_grad();
      for (int rank = 0; rank < 3; ++rank) {
        if (step < rounds[rank]) {
          (test::loss_of(twin->forward(test::input(rank, step))) / 3).backward();
        }
      }
      torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.05);
      plain.step();
      plain_schedule.step();
    }
    test::require_same(test::values_of(*model), test::values_of(*twin), false);
    require_equal_on_all_ranks(group, test::values_of(*model));
    // Afterwards all train on as before.
    test::loss_of(parallel.forward(test::input(group.rank(), 9))).backward();
    optimizer.step();
    require_equal_on_all_ranks(group, test::values_of(*model));
  });
}

TEST(Join, ReplicatedModelsAndBuffersEndAlike) {
  test::run_ranks(2, [&](Group group) {
    Sequential model(torch::nn::BatchNorm1d(10), torch::nn::Linear(10, 2));
    model->to(test::device());
    ShardedDataParallel<Sequential> parallel(group, model);
    torch::optim::SGD optimizer(model->parameters(), SGDOptions(0.1));
    parallel.join([&] {
      for (int step = 0; step < 1 + 2 * group.rank(); ++step) {
        optimizer.zero_grad();
        test::loss_of(parallel.forward(test::input(group.rank(), step))).backward();
        optimizer.step();
      }
    });
    require_equal_on_all_ranks(group, test::values_of(*model));
    require_equal_on_all_ranks(group, model->buffers());
    EXPECT_EQ(model->named_buffers()["0.num_batches_tracked"].item<int64_t>(), 3);
  });
}

TEST(Join, AnExceptionInTheLoopIsNotHeldBack) {
  EXPECT_THROW(test::run_ranks(2,
                               [&](Group group) {
                                 auto model = test::make_model();
                                 ShardedDataParallel<Sequential> parallel(group, model);
                                 parallel.join([&] {
                                   if (group.rank() == 0) {
                                     throw std::runtime_error("out of patience");
                                   }
                                 });
                               }),
               comm::LaunchError);
}

}  // namespace join_test
}  // namespace fairshard

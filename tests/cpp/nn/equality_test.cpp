// Sharded training against plain training: c10d's own all-reduce and torch's own optimizers.
#include "support/training.h"
#include <fairshard/optim/fused.h>

#include <gtest/gtest.h>

namespace fairshard {
namespace equality_test {

using comm::Group;
using test::run_ranks;
using torch::nn::Sequential;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using Mode = DataParallelMode;
using test::require_same;
using test::train_plainly;
using test::train_sharded;
using test::Values;

template <typename Optimizer, typename Options>
Values train_replicated(Group group, const Options& options) {
  auto model = test::make_model(group.rank());
  ShardedDataParallel<Sequential> parallel(group, model);
  Optimizer optimizer(model->parameters(), options);
  for (int step = 0; step < test::kSteps; ++step) {
    optimizer.zero_grad();
    test::loss_of(parallel(test::input(group.rank(), step))).backward();
    optimizer.step();
  }
  return test::values_of(*model);
}

template <typename Optimizer, typename Options>
void compare_all_modes(int ranks, const Options& options) {
  run_ranks(ranks, [&](Group group) {
    const Values plain = train_plainly<Optimizer>(group, options);
    const bool bits = ranks <= 2;
    for (const auto mode : {Mode::kGradients, Mode::kOptimizer}) {
      const auto parallel = DataParallelOptions().mode(mode);
      require_same(train_sharded<Optimizer>(group, options, parallel), plain, bits);
    }
    require_same(train_replicated<Optimizer>(group, options), plain, bits);
    auto by_tensor = OssOptions(test::kSmallBuckets).partition(shard::Partition::kTensor);
    require_same(train_sharded<Optimizer>(group, options, {}, by_tensor), plain, bits);
  });
}

class EqualityRanks : public testing::TestWithParam<int> {};

TEST_P(EqualityRanks, AdamWTrainsAsPlainDataParallelism) {
  compare_all_modes<torch::optim::AdamW>(GetParam(), AdamWOptions(1e-2).weight_decay(0.1));
}

TEST_P(EqualityRanks, SgdWithMomentumTrainsAsPlainDataParallelism) {
  compare_all_modes<torch::optim::SGD>(GetParam(), SGDOptions(1e-2).momentum(0.9));
}

TEST_P(EqualityRanks, FusedOptimizersTrainAsPlainDataParallelism) {
  compare_all_modes<AdamW>(GetParam(), AdamWOptions(1e-2).weight_decay(0.1));
}

INSTANTIATE_TEST_SUITE_P(, EqualityRanks, testing::Values(1, 2, 3, 4, 8));

TEST(Equality, OverlappedGatherGivesTheSameParameters) {
  run_ranks(2, [](Group group) {
    const auto options = SGDOptions(0.1);
    const auto oss = OssOptions().bucket_bytes(500).overlap_gather(true);
    require_same(train_sharded<torch::optim::SGD>(group, options, {}, oss),
                 train_plainly<torch::optim::SGD>(group, options), true);
  });
}

TEST(Equality, BucketsOfAnySizeGiveTheSameParameters) {
  run_ranks(2, [](Group group) {
    const auto options = SGDOptions(0.1);
    const Values plain = train_plainly<torch::optim::SGD>(group, options);
    for (const int64_t bytes : {0, 64, 1 << 30}) {
      const auto oss = OssOptions().bucket_bytes(bytes);
      require_same(train_sharded<torch::optim::SGD>(group, options, {}, oss), plain, true);
    }
  });
}

/// Layers that run in another order than that in which they are registered.
struct BackwardsImpl : torch::nn::Module {
  BackwardsImpl() {
    last = register_module("last", torch::nn::Linear(10, 10));
    middle = register_module("middle", torch::nn::Linear(10, 10));
    first = register_module("first", torch::nn::Linear(10, 10));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last->forward(middle->forward(first->forward(x).tanh()).tanh());
  }
  torch::nn::Linear last{nullptr}, middle{nullptr}, first{nullptr};
};
TORCH_MODULE(Backwards);

TEST(Equality, TheOrderOfGradientsIsLearntAndChangesNothing) {
  run_ranks(2, [](Group group) {
    Backwards model;
    model->to(test::device());
    for (const auto& parameter : model->parameters()) {
      comm::broadcast(group, parameter.detach(), 0).wait();
    }
    Backwards twin;
    twin->to(test::device());
    for (const auto& item : model->named_parameters()) {
      twin->named_parameters()[item.key()].set_data(item.value().detach().clone());
    }
    OSS<torch::optim::AdamW> optimizer(group, *model, AdamWOptions(1e-2),
                                       OssOptions().bucket_bytes(900).first_bucket_bytes(900));
    torch::optim::AdamW plain(twin->parameters(), AdamWOptions(1e-2));
    ShardedDataParallel<Backwards> parallel(group, model, optimizer);
    const auto& flat = *optimizer.flat_groups()[0];
    EXPECT_GT(flat.layout().bucket_of(0),
              flat.layout().bucket_of(4));  // as registered: `last` comes last
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = test::input(0, step);
      optimizer.zero_grad();
      test::loss_of(parallel.forward(x)).backward();
      EXPECT_LT(flat.layout().bucket_of(0),
                flat.layout().bucket_of(4));  // as seen: its gradient comes first
      optimizer.step();
      plain.zero_grad();
      test::loss_of(twin->forward(x)).backward();
      plain.step();
    }
    require_same(test::values_of(*model), test::values_of(*twin), true);
  });
}

}  // namespace equality_test
}  // namespace fairshard

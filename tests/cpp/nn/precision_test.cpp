// Low precision: casts after wrapping, exact copies, and what travels.
#include "support/expect_error.h"
#include "support/training.h"

#include <gtest/gtest.h>

namespace fairshard {
namespace precision_test {

using comm::Group;
using test::run_ranks;
using torch::nn::Sequential;
using torch::optim::SGDOptions;

TEST(Precision, MasterWeightsStepInFloat32) {
  run_ranks(2, [](Group group) {
    auto model = test::make_model();
    model->to(at::kBFloat16);
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(1e-3),
                                     OssOptions(test::kSmallBuckets).master_weights(true));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    // One process with both ranks' gradients, in float32 from the bfloat16 ones.
    auto twin = test::make_model();
    twin->to(at::kBFloat16);
    test::Values masters;
    for (const auto& parameter : twin->parameters()) {
      masters.push_back(parameter.detach().to(at::kFloat));
    }
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      const auto data = [&](int rank) { return test::input(rank, step).to(at::kBFloat16); };
      test::loss_of(parallel.forward(data(group.rank()))).backward();
      optimizer.step();
      test::Values sums;
      for (int rank = 0; rank < 2; ++rank) {
        twin->zero_grad();
        test::loss_of(twin->forward(data(rank))).backward();
        for (size_t i = 0; i < masters.size(); ++i) {
          const at::Tensor half = twin->parameters()[i].grad().mul(0.5).to(at::kFloat);
          rank == 0 ? sums.push_back(half) : void(sums[i].add_(half));
        }
      }
      for (size_t i = 0; i < masters.size(); ++i) {
        masters[i].sub_(sums[i], 1e-3);
        twin->parameters()[i].set_data(masters[i].to(at::kBFloat16));
      }
    }
    test::require_same(test::values_of(*model), test::values_of(*twin), true);
    // Without masters such small steps would be lost: they are not.
    EXPECT_FALSE(masters[0].to(at::kBFloat16).equal(masters[0]));
  });
}

TEST(Precision, GatheringInBfloat16KeepsExactCopies) {
  run_ranks(2, [](Group group) {
    auto model = test::make_model();
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1),
                                     OssOptions().gather_dtype(at::kBFloat16));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    // One process: a rounded model gives gradients, an exact one is stepped by them.
    auto exact = test::make_model();
    auto rounded = test::make_model();
    torch::optim::SGD plain(exact->parameters(), SGDOptions(0.1));
    for (int step = 0; step < 10; ++step) {
      const auto before = group.traffic().sent_bytes;
      optimizer.zero_grad();
      test::loss_of(parallel.forward(test::input(group.rank(), step))).backward();
      const auto reduced = group.traffic().sent_bytes;
      optimizer.step();
      const auto gathered = group.traffic().sent_bytes;
      EXPECT_LT(2 * (gathered - reduced), 1.2 * (reduced - before) + (step == 0 ? 1000 : 0));

      rounded->zero_grad();
      ((test::loss_of(rounded->forward(test::input(0, step))) +
        test::loss_of(rounded->forward(test::input(1, step)))) /
       2)
          .backward();
      for (size_t i = 0; i < exact->parameters().size(); ++i) {
        exact->parameters()[i].mutable_grad() = rounded->parameters()[i].grad();
      }
      plain.step();
      for (size_t i = 0; i < exact->parameters().size(); ++i) {
        rounded->parameters()[i].set_data(
            exact->parameters()[i].detach().to(at::kBFloat16).to(at::kFloat));
      }
    }
    for (const auto& slice : optimizer.flat_groups()[0]->slices()) {
      const at::Tensor whole = exact->parameters()[slice.piece.parameter].detach().view(-1);
      EXPECT_TRUE(
          slice.values.allclose(whole.slice(0, slice.piece.begin, slice.piece.end), 1e-4, 1e-5));
    }
    for (const auto& value : test::values_of(*model)) {
      EXPECT_TRUE(value.equal(value.to(at::kBFloat16).to(at::kFloat)));
    }
  });
}

TEST(Precision, GradientsMayTravelInBfloat16) {
  for (const auto mode : {DataParallelMode::kGradients, DataParallelMode::kOptimizer}) {
    run_ranks(2, [&](Group group) {
      const auto options = SGDOptions(0.1);
      const auto parallel = DataParallelOptions().mode(mode).reduce_dtype(at::kBFloat16);
      const auto ours = test::train_sharded<torch::optim::SGD>(group, options, parallel);
      const auto plain = test::train_plainly<torch::optim::SGD>(group, options);
      for (size_t i = 0; i < plain.size(); ++i) {
        EXPECT_TRUE(ours[i].allclose(plain[i], 1e-2, 1e-3));
        EXPECT_FALSE(ours[i].equal(plain[i]));
      }
    });
  }
}

TEST(Precision, TheDtypeMayChangeBetweenStepsButNotTheShape) {
  run_ranks(2, [](Group group) {
    auto model = test::make_model();
    auto twin = test::make_model();
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1).momentum(0.9),
                                     test::kSmallBuckets);
    torch::optim::SGD plain(twin->parameters(), SGDOptions(0.1).momentum(0.9));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    for (const auto dtype : {at::kFloat, at::kDouble, at::kFloat, at::kDouble}) {
      model->to(dtype);
      twin->to(dtype);
      const at::Tensor x = test::input(0, 0).to(dtype);
      optimizer.zero_grad();
      test::loss_of(parallel.forward(x)).backward();
      optimizer.step();
      plain.zero_grad();
      test::loss_of(twin->forward(x)).backward();
      plain.step();
      test::require_same(test::values_of(*model), test::values_of(*twin), false);
    }
    model->to(at::kFloat);
    model->parameters()[0].set_data(at::zeros({3, 3}, test::device()));
    test::expect_error([&] { parallel.forward(test::input(0, 0)); },
                       {"'0.weight'", "was replaced by Float[3, 3]"});
  });
}

}  // namespace precision_test
}  // namespace fairshard

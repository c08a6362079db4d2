// Scaled losses: the same training, and one decision for all ranks.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/optim/grad_scaler.h>

#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <limits>
#include <random>
#include <sstream>

namespace fairshard {
namespace grad_scaler_test {

using comm::Group;
using comm::launch_threads;
using torch::nn::Sequential;
using torch::optim::SGDOptions;

constexpr auto kInfinity = std::numeric_limits<float>::infinity();

/// Whether a rank's loss is infinite in a step: seeded, the same on all ranks.
bool is_spoilt(int step, int rank) {
  std::mt19937 random(static_cast<uint32_t>(100 * step + rank));
  return random() % 20 == 0;
}

/// torch.amp's rules, written out.
struct ScaleByHand {
  double scale;
  int growth_interval;
  int good_steps = 0;
  void update(bool has_infinity) {
    if (has_infinity) {
      scale *= 0.5;
      good_steps = 0;
    } else if (++good_steps == growth_interval) {
      scale *= 2;
      good_steps = 0;
    }
  }
};

class ScalerRanks : public testing::TestWithParam<int> {};

TEST_P(ScalerRanks, AnInfinityAnywhereSkipsTheStepEverywhere) {
  const int ranks = GetParam();
  launch_threads(ranks, [&](Group group) {
    auto model = test::make_model();
    auto twin = test::make_model();
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.05).momentum(0.9),
                                     test::kSmallBuckets);
    torch::optim::SGD plain(twin->parameters(), SGDOptions(0.05).momentum(0.9));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    ShardedGradScaler scaler(group, GradScalerOptions().init_scale(1024).growth_interval(5));
    ScaleByHand expected{1024, 5};
    for (int step = 0; step < 150; ++step) {
      optimizer.zero_grad();
      at::Tensor loss = test::loss_of(parallel.forward(test::input(group.rank(), step)));
      loss = is_spoilt(step, group.rank()) ? loss * kInfinity : loss;
      scaler.scale(loss).backward();
      bool has_infinity = false;
      plain.zero_grad();
      for (int rank = 0; rank < ranks; ++rank) {
        has_infinity |= is_spoilt(step, rank);
        (test::loss_of(twin->forward(test::input(rank, step))) / ranks).backward();
      }
      EXPECT_EQ(scaler.step(optimizer), !has_infinity);
      if (!has_infinity) {
        plain.step();
      }
      scaler.update();
      expected.update(has_infinity);
      EXPECT_EQ(scaler.get_scale(), expected.scale);
    }
    test::require_same(test::values_of(*model), test::values_of(*twin), false);
  });
}

INSTANTIATE_TEST_SUITE_P(, ScalerRanks, testing::Values(1, 2, 4));

TEST(GradScaler, PlainOptimizersClippingAndState) {
  launch_threads(2, [](Group group) {
    auto model = test::make_model();
    ShardedDataParallel<Sequential> parallel(group, model);
    torch::optim::SGD optimizer(model->parameters(), SGDOptions(0.1));
    ShardedGradScaler scaler(group, GradScalerOptions().init_scale(256));
    scaler.scale(test::loss_of(parallel.forward(test::input(0, 0)))).backward();
    scaler.unscale_(optimizer);
    auto twin = test::make_model();
    test::loss_of(twin->forward(test::input(0, 0))).backward();
    for (size_t i = 0; i < twin->parameters().size(); ++i) {
      EXPECT_TRUE(model->parameters()[i].grad().allclose(twin->parameters()[i].grad()));
    }
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update(8.0);
    EXPECT_EQ(scaler.get_scale(), 8);
    std::stringstream stream;
    torch::serialize::OutputArchive out;
    scaler.save(out);
    out.save_to(stream);
    torch::serialize::InputArchive in;
    in.load_from(stream);
    ShardedGradScaler again(group);
    again.load(in);
    EXPECT_EQ(again.get_scale(), 8);
  });
}

TEST(GradScaler, AStepOnScaledGradientsIsRefused) {
  launch_threads(1, [](Group group) {
    auto model = test::make_model();
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    ShardedGradScaler scaler(group);
    scaler.scale(test::loss_of(parallel.forward(test::input(0, 0)))).backward();
    test::expect_error([&] { optimizer.step(); }, {"scaler.step(optimizer)"});
    EXPECT_TRUE(scaler.step(optimizer));
    scaler.update();
    optimizer.zero_grad();
    test::loss_of(parallel.forward(test::input(0, 0))).backward();
    optimizer.step();  // not scaled, so nothing is wrong
  });
}

TEST(GradScaler, MisuseIsNamed) {
  launch_threads(1, [](Group group) {
    const auto make = [&](const GradScalerOptions& options) {
      return [&group, options] { ShardedGradScaler(group, options); };
    };
    test::expect_error(make(GradScalerOptions().init_scale(0)), {"init_scale", "0"});
    test::expect_error(make(GradScalerOptions().growth_interval(0)), {"growth_interval"});
    test::expect_error(make(GradScalerOptions().growth_factor(1)), {"growth_factor"});
    test::expect_error(make(GradScalerOptions().backoff_factor(1)), {"backoff_factor"});
    auto model = test::make_model();
    torch::optim::SGD optimizer(model->parameters(), SGDOptions(0.1));
    ShardedGradScaler scaler(group);
    test::expect_error([&] { scaler.update(); }, {"before step()"});
    scaler.scale(test::loss_of(model->forward(test::input(0, 0)))).backward();
    scaler.unscale_(optimizer);
    test::expect_error([&] { scaler.unscale_(optimizer); }, {"already been called"});
    scaler.step(optimizer);
    test::expect_error([&] { scaler.step(optimizer); }, {"already been called"});
    test::expect_error([&] { scaler.unscale_(optimizer); }, {"after step()"});
    test::expect_error([&] { scaler.update(-1.0); }, {"-1"});
    ShardedGradScaler off(group, GradScalerOptions().enabled(false));
    EXPECT_EQ(off.get_scale(), 1);
    EXPECT_TRUE(off.step(optimizer));
  });
}

TEST(GradScaler, StepInBackwardIsRefusedInTheFirstStep) {
  launch_threads(2, [](Group group) {
    auto model = test::make_model();
    OSS<torch::optim::Adam> optimizer(group, *model, torch::optim::AdamOptions(0.1),
                                      OssOptions().step_in_backward(true));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    ShardedGradScaler scaler(group);
    test::expect_error(
        [&] {
          scaler.scale(test::loss_of(parallel.forward(test::input(0, 0)))).backward();
          scaler.step(optimizer);
        },
        {"step_in_backward cannot be used with a grad scaler"});
  });
}

}  // namespace grad_scaler_test
}  // namespace fairshard

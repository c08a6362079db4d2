// Learning rates by step.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/optim/schedule.h>

#include <gtest/gtest.h>

namespace fairshard {
namespace schedule_test {

TEST(Schedule, ShapesAreTheTextbooks) {
  EXPECT_DOUBLE_EQ(constant_schedule(0.5)(1000), 0.5);
  const auto line = linear_schedule(10, 0.5);
  EXPECT_DOUBLE_EQ(line(0), 1);
  EXPECT_DOUBLE_EQ(line(5), 0.75);
  EXPECT_DOUBLE_EQ(line(99), 0.5);
  const auto wave = cosine_schedule(100, 0.1);
  EXPECT_DOUBLE_EQ(wave(0), 1);
  EXPECT_NEAR(wave(50), 0.55, 1e-12);
  EXPECT_NEAR(wave(25), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2, 1e-12);
  EXPECT_DOUBLE_EQ(wave(1000), 0.1);
  const auto stairs = step_schedule(3, 0.5);
  EXPECT_DOUBLE_EQ(stairs(2), 1);
  EXPECT_DOUBLE_EQ(stairs(3), 0.5);
  EXPECT_DOUBLE_EQ(stairs(8), 0.25);
}

TEST(Schedule, TheyCompose) {
  const auto schedule =
      warmup_schedule(4, sequence_schedule(constant_schedule(), 2, linear_schedule(2)));
  const std::vector<double> expected{0.25, 0.5, 0.75, 1, 1, 1, 1, 0.5, 0, 0};
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_DOUBLE_EQ(schedule(static_cast<int64_t>(step)), expected[step]) << step;
  }
}

TEST(Schedule, AnyOptimizerFollows) {
  comm::launch_threads(2, [](comm::Group group) {
    auto model = test::make_model();
    OSS<torch::optim::SGD> optimizer(group, *model, torch::optim::SGDOptions(0.4));
    LearningRate rate(optimizer, step_schedule(1, 0.5));
    EXPECT_DOUBLE_EQ(rate.rate(), 0.4);
    rate.step();
    EXPECT_DOUBLE_EQ(optimizer.param_groups()[0].options().get_lr(), 0.2);
    rate.set_steps(3);
    EXPECT_DOUBLE_EQ(rate.rate(), 0.05);
  });
}

TEST(Schedule, BadNumbersAreNamed) {
  test::expect_error([] { cosine_schedule(0); }, {"cosine_schedule", "0"});
  auto model = test::make_model();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.4));
  LearningRate rate(optimizer, constant_schedule());
  test::expect_error([&] { rate.set_steps(-1); }, {"-1"});
}

}  // namespace schedule_test
}  // namespace fairshard

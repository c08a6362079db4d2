// The loop of our own (bfloat16 in and out, float32 between) against ATen's optimizers.
#include "../../../src/page/fused_step.h"
#include "support/training.h"

#include <gtest/gtest.h>

#include <limits>

namespace fairshard::page {
namespace optimizer_worker_test {

StepTarget make_target(const StepOptions& options, at::ScalarType gradient_dtype) {
  torch::manual_seed(5);
  StepTarget target;
  target.options = options;
  target.parameter = torch::randn({1003});
  target.image = target.parameter.to(at::kBFloat16);
  target.gradient = torch::randn({1003}).to(gradient_dtype);
  target.state.step = at::zeros({}, at::kFloat);
  target.state.average = at::zeros({1003});
  target.state.square_average = at::zeros({1003});
  return target;
}

void expect_steps_like_aten(StepOptions options) {
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    auto ours = make_target(options, dtype);
    auto theirs = make_target(options, dtype);
    ours.state.is_first = theirs.state.is_first = options.momentum() > 0;
    EXPECT_TRUE(is_for_ranges(ours));
    for (int step = 0; step < 10; ++step) {
      count_step(ours);
      step_range(ours, 0, 500);
      step_range(ours, 500, 1003);
      step_whole(theirs);
      ours.state.is_first = theirs.state.is_first = false;
    }
    EXPECT_TRUE(at::allclose(ours.parameter, theirs.parameter, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(ours.state.average, theirs.state.average, 1e-5, 1e-6));
    EXPECT_TRUE(at::equal(ours.image, ours.parameter.to(at::kBFloat16)));
  }
}

TEST(FusedStep, IsThatOfAten) {
  const auto adam = StepOptions().lr(1e-2).weight_decay(0.1);
  expect_steps_like_aten(adam);
  expect_steps_like_aten(StepOptions(adam).rule(StepRule::kAdam));
  expect_steps_like_aten(StepOptions(adam).maximize(true));
  const auto sgd = StepOptions().rule(StepRule::kSgd).lr(1e-2);
  expect_steps_like_aten(sgd);
  expect_steps_like_aten(StepOptions(sgd).momentum(0.9).dampening(0.2).weight_decay(0.1));
  expect_steps_like_aten(StepOptions(sgd).momentum(0.9).nesterov(true));
}

TEST(FusedStep, RoundsToNearestEvenAndKeepsNotANumber) {
  auto target = make_target(StepOptions().rule(StepRule::kSgd).lr(0), at::kBFloat16);
  target.parameter[0] = std::numeric_limits<float>::quiet_NaN();
  target.parameter[1] = std::numeric_limits<float>::max();
  target.parameter[2] = 1.00390625F;  // half-way between two of them
  target.gradient.zero_();
  step_range(target, 0, 1003);
  EXPECT_TRUE(target.image[0].isnan().item<bool>());
  target.parameter[0] = 0;
  target.image[0] = 0;
  EXPECT_TRUE(at::equal(target.image, target.parameter.to(at::kBFloat16)));
}

}  // namespace optimizer_worker_test
}  // namespace fairshard::page

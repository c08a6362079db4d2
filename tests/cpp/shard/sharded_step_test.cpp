// In which calls a step gives the optimizer its slices.
#include "support/ranks.h"
#include "support/sharded_parameters.h"
#include <fairshard/shard/sharded_step.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace fairshard::shard {
namespace sharded_step_test {

constexpr int64_t kSize = 64;

/// Eight parameters, each in a bucket of its own, of which a step subtracts the gradient.
struct Training {
  Training(const comm::Group& ranks, bool step_in_parts)
      : parameters(test::make_parameters(std::vector<int64_t>(8, kSize))) {
    StepCallbacks callbacks;
    callbacks.step_slices = [this](const std::vector<std::vector<at::Tensor>>& groups) {
      calls.push_back(groups.at(0).size());
      for (const at::Tensor& slice : groups[0]) {
        at::Tensor(slice).sub_(slice.grad());
      }
    };
    callbacks.numbers = [] { return std::vector<double>(); };
    callbacks.set_numbers = [](const std::vector<double>&) {};
    step = std::make_shared<ShardedStep>(
        ranks, StepOptions().flat(test::one_bucket_each()).step_in_parts(step_in_parts), callbacks);
    step->add(parameters, 1);
  }

  void run() {
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < parameters.size(); ++i) {
      gradients.push_back(at::full({kSize}, static_cast<double>(i + 1)));
    }
    test::set_reduced(*step->flat_groups()[0], gradients);
    step->run();
  }

  std::vector<Parameter> parameters;
  std::shared_ptr<ShardedStep> step;
  /// How many slices each call had.
  std::vector<size_t> calls;
};

/// Whether there are parts or not, all is stepped once, and all ranks get it.
void expect_stepped(const Training& training, int64_t steps) {
  for (size_t i = 0; i < training.parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(training.parameters[i].tensor,
                          test::initial_values(i, kSize) - static_cast<double>(i + 1) * steps))
        << "parameter " << i << " after " << steps << " steps";
  }
}

TEST(ShardedStep, StepsAQuarterFirstSoThatItTravelsWhileTheRestIsStepped) {
  test::run_ranks(2, [](const comm::Group& ranks) {
    Training training(ranks, true);
    training.run();
    expect_stepped(training, 1);
    EXPECT_EQ(training.calls, (std::vector<size_t>{2, 6}));
  });
}

TEST(ShardedStep, StepsAllAtOnceWhereAnOptimizerMayCountItsCalls) {
  test::run_ranks(2, [](const comm::Group& ranks) {
    Training training(ranks, false);
    training.run();
    expect_stepped(training, 1);
    EXPECT_EQ(training.calls, std::vector<size_t>{8});
  });
}

}  // namespace sharded_step_test
}  // namespace fairshard::shard

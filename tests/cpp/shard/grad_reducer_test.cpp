// A reducer in each mode, by what steps make of the parameters, against one process with all data.
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/sharded_parameters.h"
#include <fairshard/shard/grad_reducer.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <tuple>

namespace fairshard::shard {
namespace grad_reducer_test {

using test::expect_error;
using test::initial_values;
using test::run_ranks;

constexpr size_t kCount = 6;
constexpr int64_t kSize = 50;

enum class Mode { kReplicated, kSharded, kStepInBackward };

/// Six parameters, each in a bucket of its own, and an SGD that also takes 1 from what it steps: a
/// parameter that should be left out would show it.
struct Training {
  Training(const comm::Group& ranks, Mode chosen, ReducerOptions options = {},
           const FlatOptions& flat = test::one_bucket_each())
      : mode(chosen), parameters(test::make_parameters(std::vector<int64_t>(kCount, kSize))) {
    StepCallbacks callbacks;
    callbacks.step_slices = [](const std::vector<std::vector<at::Tensor>>& groups) {
      for (const auto& slices : groups) {
        for (const at::Tensor& slice : slices) {
          if (slice.grad().defined()) {
            at::Tensor(slice).sub_(slice.grad() + 1);
          }
        }
      }
    };
    callbacks.numbers = [] { return std::vector<double>(); };
    callbacks.set_numbers = [](const std::vector<double>&) {};
    FlatOptions with_mode = flat;
    with_mode.step_in_backward(mode == Mode::kStepInBackward);
    step = std::make_shared<ShardedStep>(ranks, StepOptions().flat(with_mode), callbacks);
    step->add(parameters, 1);
    options.mode(mode == Mode::kReplicated ? GradientMode::kReplicated : GradientMode::kSharded);
    reducer = std::make_unique<GradReducer>(
        std::vector<ReducedGroup>{{step->flat_groups()[0], step}}, options);
  }

  const at::Tensor& operator[](size_t i) const { return parameters[i].tensor; }
  const FlatGroup& flat() const { return *step->flat_groups()[0]; }

  /// The gradient of parameter i becomes `factor` in all elements, for those in `used`. Gradients
  /// come against the order of `used`.
  void backward(double factor, const std::vector<size_t>& used = {0, 1, 2, 3, 4, 5}) const {
    reducer->prepare();
    at::Tensor loss = at::zeros({});
    for (const size_t i : used) {
      loss = loss + (parameters[i].tensor * factor).sum();
    }
    loss.backward();
  }
  void run_step() const {
    step->run();
    step->clear_gradients();
    for (const auto& parameter : parameters) {
      parameter.tensor.mutable_grad() = at::Tensor();
    }
  }
  /// Parameter i has lost so much since the beginning.
  void expect_taken(size_t i, double taken, double tolerance = 1e-4) const {
    EXPECT_TRUE(at::allclose(parameters[i].tensor, initial_values(i, kSize) - taken, 0, tolerance))
        << "parameter " << i << " has lost "
        << (initial_values(i, kSize) - parameters[i].tensor).mean().item<double>() << " instead of "
        << taken;
  }
  void expect_all_taken(double taken, double tolerance = 1e-4) const {
    for (size_t i = 0; i < kCount; ++i) {
      expect_taken(i, taken, tolerance);
    }
  }

  Mode mode;
  std::vector<Parameter> parameters;
  std::shared_ptr<ShardedStep> step;
  std::unique_ptr<GradReducer> reducer;
};

/// The mean over ranks of what rank r has as (r + 1).
double mean(const comm::Group& group) { return (group.size() + 1) / 2.0; }

class GradReducerModes : public testing::TestWithParam<std::tuple<Mode, int>> {
 protected:
  Mode mode() const { return std::get<0>(GetParam()); }
  int ranks() const { return std::get<1>(GetParam()); }
};

TEST_P(GradReducerModes, StepsAreThoseOfTheMeanGradient) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    const Training training(group, mode);
    double taken = 0;
    for (int step = 1; step <= 4; ++step) {
      training.backward(step * (group.rank() + 1));
      if (mode == Mode::kReplicated) {
        EXPECT_TRUE(at::allclose(training[2].grad(), at::full({kSize}, step * mean(group))));
      }
      training.run_step();
      taken += step * mean(group) + 1;
      training.expect_all_taken(taken);
    }
  });
}

TEST_P(GradReducerModes, UnusedHereCountsAsZerosAndUnusedEverywhereIsLeftOut) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    const Training training(group, mode);
    double taken = 0;
    double taken_of_first = 0;
    for (int step = 0; step < 3; ++step) {
      // Parameter 1 by rank 0 alone, parameter 4 by nobody.
      training.backward(group.rank() + 1, group.rank() == 0 ? std::vector<size_t>{0, 1, 2, 3, 5}
                                                            : std::vector<size_t>{0, 2, 3, 5});
      training.run_step();
      taken += mean(group) + 1;
      taken_of_first += 1.0 / group.size() + 1;
      training.expect_taken(0, taken);
      training.expect_taken(1, taken_of_first);
      training.expect_taken(4, 0);
    }
    // It is used again.
    training.backward(1);
    training.run_step();
    training.expect_taken(4, 2);
  });
}

/// How many collectives a backward of each rank's own parameters starts, after some steps.
uint64_t collectives_of_uneven_use(const comm::Group& group, Mode mode, bool is_static) {
  const Training training(group, mode, ReducerOptions().static_graph(is_static));
  const auto used =
      group.rank() == 0 ? std::vector<size_t>{0, 1, 2, 3, 5} : std::vector<size_t>{0, 2, 3, 5};
  uint64_t collectives = 0;
  for (int step = 1; step <= 3; ++step) {
    const auto before = group.traffic().collectives;
    training.backward(group.rank() + 1, used);
    collectives = group.traffic().collectives - before;
    training.run_step();
    training.expect_taken(0, step * (mean(group) + 1));
    training.expect_taken(1, step * (1.0 / group.size() + 1));
    training.expect_taken(4, 0);
  }
  return collectives;
}

TEST_P(GradReducerModes, OnWhatAStaticGraphUsesRanksAgreeOnce) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    const uint64_t agreements = mode == Mode::kStepInBackward ? kCount : 1;
    const uint64_t saved = group.size() == 1 ? 0 : agreements;
    EXPECT_EQ(collectives_of_uneven_use(group, mode, true) + saved,
              collectives_of_uneven_use(group, mode, false));
  });
}

TEST_P(GradReducerModes, AGraphThatIsNotStaticIsRefused) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    const Training lacks(group, mode, ReducerOptions().static_graph(true));
    lacks.backward(1);
    lacks.run_step();
    expect_error([&] { lacks.backward(1, {0, 1, 2, 3, 5}); },
                 {"static_graph", "'p4' had a gradient in the first one and has none now"});
    const Training gains(group, mode, ReducerOptions().static_graph(true));
    gains.backward(1, {0, 1, 2, 3, 5});
    gains.run_step();
    expect_error([&] { gains.backward(1); }, {"'p4' had no gradient in the first one and has one"});
  });
}

TEST_P(GradReducerModes, WithoutSyncGradientsAddUpForTheNextBackward) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    const Training training(group, mode);
    training.backward(0);  // finds the order of buckets
    training.run_step();
    const auto sent = group.traffic().sent_bytes;
    training.reducer->set_sync(false);
    training.backward(group.rank() + 1);
    training.backward(10 * (group.rank() + 1));
    EXPECT_EQ(group.traffic().sent_bytes, sent) << "nothing is communicated";
    EXPECT_TRUE(training.step->awaits_reduction());
    training.reducer->set_sync(true);
    training.backward(100 * (group.rank() + 1));
    EXPECT_FALSE(training.step->awaits_reduction());
    training.run_step();
    training.expect_all_taken(1 + 111 * mean(group) + 1, 1e-3);
  });
}

TEST_P(GradReducerModes, ReduceDoesWhatTheEndOfABackwardWould) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    const Training training(group, mode);
    training.backward(0);
    training.run_step();
    training.reducer->set_sync(false);
    training.backward(group.rank() + 1);
    training.reducer->set_sync(true);
    training.reducer->prepare();
    training.reducer->reduce();
    training.run_step();
    training.expect_all_taken(1 + mean(group) + 1);
  });
}

TEST_P(GradReducerModes, RankZerosOrderOfGradientsIsEverybodys) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    const Training training(group, mode);
    const std::vector<size_t> last_first{5, 4, 3, 2, 1, 0};
    EXPECT_EQ(training.flat().layout().order(), last_first);
    // On rank 0 gradients come from the first parameter on, elsewhere from the last.
    const bool leads = group.rank() == 0;
    const std::vector<size_t> used = leads ? last_first : std::vector<size_t>{0, 1, 2, 3, 4, 5};
    training.backward(group.rank() + 1, used);
    // What is stepped in backward has state by now, and keeps its buckets.
    const std::vector<size_t> first_first{0, 1, 2, 3, 4, 5};
    EXPECT_EQ(training.flat().layout().order(),
              mode == Mode::kStepInBackward ? last_first : first_first);
    training.run_step();
    EXPECT_TRUE(training.flat().is_layout_frozen());
    training.backward(group.rank() + 1, used);
    training.run_step();
    training.expect_all_taken(2 * (mean(group) + 1));
  });
}

TEST_P(GradReducerModes, ABackwardThatThrewIsForgottenByTheNextForward) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    const Training training(group, mode);
    training.backward(0);
    training.run_step();
    training.reducer->prepare();
    const at::Tensor early = training[0] * 1;
    early.register_hook([](const at::Tensor&) { throw std::runtime_error("broken off"); });
    at::Tensor loss = early.sum();
    for (size_t i = 1; i < kCount; ++i) {
      loss = loss + training[i].sum();
    }
    expect_error([&] { loss.backward(); }, {"broken off"});
    for (const auto& parameter : training.parameters) {
      parameter.tensor.mutable_grad() = at::Tensor();
    }
    if (mode == Mode::kStepInBackward) {
      return;  // it may have stepped some; that the next one works is all that can be said
    }
    training.step->clear_gradients();
    training.backward(group.rank() + 1);
    training.run_step();
    training.expect_all_taken(1 + mean(group) + 1);
  });
}

TEST_P(GradReducerModes, AfterwardsIsSaidOncePerBackward) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    int calls = 0;
    const Training training(group, mode, ReducerOptions().after_reduction([&] { ++calls; }));
    for (int step = 1; step <= 3; ++step) {
      training.backward(1);
      EXPECT_EQ(calls, step);
      training.run_step();
    }
  });
}

TEST_P(GradReducerModes, AReducerThatIsGoneReducesNothing) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    Training training(group, mode);
    training.reducer.reset();
    const auto sent = group.traffic().sent_bytes;
    (training[3] * (group.rank() + 1)).sum().backward();
    EXPECT_TRUE(at::equal(training[3].grad(), at::full({kSize}, group.rank() + 1.0f)));
    EXPECT_EQ(group.traffic().sent_bytes, sent);
  });
}

TEST_P(GradReducerModes, GradientsMayTravelInLowPrecision) {
  run_ranks(ranks(), [mode = mode()](const comm::Group& group) {
    const Training training(group, mode, ReducerOptions().wire_dtype(at::kBFloat16));
    training.backward(1.003 * (group.rank() + 1));  // no number of bfloat16
    training.run_step();
    training.expect_all_taken(1.003 * mean(group) + 1, 0.02);
  });
}

INSTANTIATE_TEST_SUITE_P(, GradReducerModes,
                         testing::Combine(testing::Values(Mode::kReplicated, Mode::kSharded,
                                                          Mode::kStepInBackward),
                                          testing::Values(1, 2, 3)));

TEST(GradReducer, OneBucketAtATimeIsEnough) {
  run_ranks(2, [](const comm::Group& group) {
    for (const Mode mode : {Mode::kSharded, Mode::kStepInBackward}) {
      const Training training(group, mode, ReducerOptions().buckets_in_flight(1));
      for (int step = 1; step <= 3; ++step) {
        training.backward(group.rank() + 1);
        training.run_step();
        training.expect_all_taken(step * (mean(group) + 1));
      }
    }
  });
}

TEST(GradReducer, OptionsThatMakeNoSenseAreRefused) {
  run_ranks(1, [](const comm::Group& group) {
    expect_error([&] { const GradReducer none({}); }, {"no parameters"});
    expect_error(
        [&] {
          const Training training(group, Mode::kSharded, ReducerOptions().buckets_in_flight(0));
        },
        {"buckets_in_flight is 0"});
    const Training training(group, Mode::kStepInBackward);
    expect_error(
        [&] {
          const GradReducer replicated({{training.step->flat_groups()[0], training.step}},
                                       ReducerOptions().mode(GradientMode::kReplicated));
        },
        {"step_in_backward needs sharded gradients"});
  });
}

TEST(GradReducer, GradientsWithAGraphAreRefusedByName) {
  run_ranks(1, [](const comm::Group& group) {
    const Training training(group, Mode::kReplicated);
    training[2].mutable_grad() = at::ones({kSize}).requires_grad_();
    expect_error([&] { training.reducer->prepare(); }, {"'p2'", "create_graph"});
  });
}

TEST(GradReducer, TwoBackwardsWithoutAStepAreRefusedWhereBackwardSteps) {
  run_ranks(2, [](const comm::Group& group) {
    const Training training(group, Mode::kStepInBackward);
    training.backward(1);
    training.run_step();
    training.backward(1);  // the first that steps
    expect_error([&] { training.backward(1); }, {"the last backward has stepped already"});
  });
}

}  // namespace grad_reducer_test
}  // namespace fairshard::shard

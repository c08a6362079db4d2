// When buckets are resharded and unsharded, and that ranks do so in one order.
#include "support/ranks.h"
#include "support/sharded_parameters.h"
#include <fairshard/shard/flat_group.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace fairshard::shard {
namespace unshard_schedule_test {

using test::initial_values;
using test::run_ranks;
using State = FlatBucket::State;

constexpr size_t kBlocks = 4;
constexpr int64_t kSize = 50;

/// A model of four blocks, each with a parameter and so with a bucket of its own: block i has
/// bucket 3 - i. Bucket 0, which backward needs first, is never resharded.
struct Blocks {
  explicit Blocks(const comm::Group& ranks, bool after_step = false,
                  const std::vector<size_t>& order = {0, 1, 2, 3})
      : parameters(test::make_parameters(std::vector<int64_t>(kBlocks, kSize))),
        group(ranks, parameters,
              test::one_bucket_each().reshard_after_forward(true).reshard_after_step(after_step)),
        schedule(*group.schedule()) {
    schedule.set_blocks({{0}, {1}, {2}, {3}}, order);
  }

  State state(size_t block) const { return group.bucket(kBlocks - 1 - block).state(); }
  void run(size_t block) const {
    schedule.start_block(block);
    schedule.wait_for_block(block);
    EXPECT_EQ(state(block), State::kUnsharded);
    EXPECT_NO_THROW(parameters[block].tensor.sum());
    schedule.after_block(block);
  }
  void forward() const {
    schedule.begin_forward(true, true);
    for (size_t block = 0; block < kBlocks; ++block) {
      run(block);
    }
    schedule.end_forward();
  }
  void expect_states(const std::vector<State>& expected) const {
    for (size_t block = 0; block < kBlocks; ++block) {
      EXPECT_EQ(state(block), expected[block]) << "block " << block;
    }
  }
  void expect_values(double added = 0) const {
    for (size_t i = 0; i < kBlocks; ++i) {
      EXPECT_TRUE(at::allclose(parameters[i].tensor, initial_values(i, kSize) + added)) << i;
    }
  }

  std::vector<Parameter> parameters;
  FlatGroup group;
  UnshardSchedule& schedule;
};

const std::vector<State> kAll(kBlocks, State::kUnsharded);
const std::vector<State> kAfterForward{State::kSharded, State::kSharded, State::kSharded,
                                       State::kUnsharded};

class UnshardScheduleRanks : public testing::TestWithParam<int> {};

TEST_P(UnshardScheduleRanks, ABlockThatHasRunIsResharded) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    const Blocks blocks(group);
    blocks.schedule.begin_forward(true, true);
    blocks.run(0);
    blocks.expect_states(
        {State::kSharded, State::kUnsharded, State::kUnsharded, State::kUnsharded});
    blocks.run(1);
    blocks.run(2);
    blocks.run(3);
    blocks.expect_states(kAfterForward);
    blocks.schedule.end_forward();
    blocks.expect_states(kAfterForward);
    blocks.schedule.end_backward();
    blocks.expect_states(kAll);
    blocks.expect_values();
  });
}

TEST_P(UnshardScheduleRanks, BackwardHasEachBlockWhenItNeedsIt) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    const Blocks blocks(group);
    blocks.schedule.begin_forward(true, true);
    at::Tensor value = at::ones({kSize});
    std::vector<size_t> begun;
    for (size_t block = 0; block < kBlocks; ++block) {
      blocks.schedule.start_block(block);
      blocks.schedule.wait_for_block(block);
      value = value * blocks.parameters[block].tensor;
      value.register_hook([&, block](const at::Tensor&) {
        blocks.schedule.start_block(block);
        blocks.schedule.wait_for_block(block);
        EXPECT_EQ(blocks.state(block), State::kUnsharded);
        begun.push_back(block);
      });
      blocks.schedule.after_block(block);
    }
    blocks.schedule.end_forward();
    blocks.expect_states(kAfterForward);
    value.sum().backward();
    EXPECT_EQ(begun, (std::vector<size_t>{3, 2, 1, 0}));
    // Without anybody's call: whoever looks at parameters between steps sees nothing of it.
    blocks.expect_states(kAll);
    at::Tensor others = at::ones({kSize});
    for (size_t i = 1; i < kBlocks; ++i) {
      others = others * initial_values(i, kSize);
    }
    EXPECT_TRUE(at::allclose(blocks.parameters[0].tensor.grad(), others));
  });
}

TEST_P(UnshardScheduleRanks, RanksMayRunDifferentBlocks) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    const Blocks blocks(group);
    for (int pass = 0; pass < 3; ++pass) {
      blocks.schedule.begin_forward(true, true);
      for (size_t block = group.rank() % 2; block < kBlocks; block += 2) {
        blocks.run(block);
      }
      blocks.schedule.end_forward();
      blocks.expect_states(kAfterForward);
      blocks.schedule.end_backward();
    }
    blocks.expect_values();
  });
}

TEST_P(UnshardScheduleRanks, AForwardThatWasBrokenOffIsCompletedByTheNext) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    const Blocks blocks(group);
    blocks.schedule.begin_forward(true, true);
    for (size_t block = 0; block < 1 + group.rank() % kBlocks; ++block) {
      blocks.run(block);  // another number on each rank
    }
    blocks.forward();
    blocks.expect_states(kAfterForward);
    blocks.schedule.unshard_all();
    blocks.expect_values();
  });
}

TEST_P(UnshardScheduleRanks, WhatWasSteppedStaysShardedUntilTheNextForward) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    Blocks blocks(group, /*after_step=*/true);
    for (int step = 1; step <= 2; ++step) {
      blocks.forward();
      blocks.schedule.end_backward();
      const at::NoGradGuard no_grad;
      for (size_t b = 0; b < kBlocks; ++b) {
        at::Tensor(blocks.group.bucket(b).shard()).add_(1);
        const bool is_resharded = blocks.schedule.reshard_stepped(b);
        EXPECT_EQ(is_resharded, b > 0);
        if (!is_resharded) {
          blocks.group.publish(b);
        }
      }
      blocks.expect_states({State::kSharded, State::kSharded, State::kSharded, State::kUnsharding});
      blocks.group.wait_for_bucket(0);
    }
    blocks.schedule.begin_forward(true, true);
    blocks.schedule.start_block(0);
    EXPECT_NE(blocks.state(0), State::kSharded);
    EXPECT_NE(blocks.state(1), State::kSharded) << "the next one comes ahead of its use";
    EXPECT_EQ(blocks.state(2), State::kSharded);
    blocks.schedule.unshard_all();
    blocks.expect_values(2);
  });
}

INSTANTIATE_TEST_SUITE_P(, UnshardScheduleRanks, testing::Values(1, 2, 3));

TEST(UnshardSchedule, WithoutReshardAfterStepABucketIsGatheredAtOnce) {
  run_ranks(1, [](const comm::Group& group) {
    const Blocks blocks(group);
    EXPECT_FALSE(blocks.schedule.reshard_stepped(2));
    blocks.expect_states(kAll);
  });
}

TEST(UnshardSchedule, ABlockThatRunsTwiceIsKeptUntilItsLastRun) {
  run_ranks(2, [](const comm::Group& group) {
    const Blocks blocks(group, false, {0, 1, 2, 0, 3});
    blocks.schedule.begin_forward(true, true);
    blocks.run(0);
    blocks.run(1);
    EXPECT_EQ(blocks.state(0), State::kUnsharded);
    EXPECT_EQ(blocks.state(1), State::kSharded);
    blocks.run(2);
    blocks.run(0);
    EXPECT_EQ(blocks.state(0), State::kSharded);
    blocks.schedule.unshard_all();
    blocks.expect_values();
  });
}

TEST(UnshardSchedule, ABlockThatRunsOnceMoreThanKnownIsUnshardedAgain) {
  run_ranks(2, [](const comm::Group& group) {
    const Blocks blocks(group);
    blocks.schedule.begin_forward(true, true);
    blocks.run(0);
    EXPECT_EQ(blocks.state(0), State::kSharded);
    blocks.run(0);
    blocks.schedule.end_forward();
    blocks.schedule.end_backward();
    // From then on it is kept.
    blocks.schedule.begin_forward(true, true);
    blocks.run(0);
    EXPECT_EQ(blocks.state(0), State::kUnsharded);
    blocks.run(0);
    EXPECT_EQ(blocks.state(0), State::kSharded);
    blocks.schedule.unshard_all();
    blocks.expect_values();
  });
}

TEST(UnshardSchedule, AParameterOfNoBlockIsNeverResharded) {
  run_ranks(2, [](const comm::Group& group) {
    const Blocks blocks(group);
    blocks.schedule.set_blocks({{0}, {}, {2}, {3}}, {0, 1, 2, 3});
    blocks.forward();
    blocks.expect_states({State::kSharded, State::kUnsharded, State::kSharded, State::kUnsharded});
    blocks.schedule.end_backward();
  });
}

TEST(UnshardSchedule, NothingIsReshardedWithoutTraining) {
  run_ranks(2, [](const comm::Group& group) {
    const Blocks blocks(group);
    blocks.schedule.begin_forward(/*is_training=*/false, true);
    blocks.run(0);
    blocks.schedule.end_forward();
    blocks.expect_states(kAll);
    const at::NoGradGuard no_grad;
    blocks.schedule.begin_forward(true, true);
    blocks.run(0);
    blocks.schedule.end_forward();
    blocks.expect_states(kAll);
  });
}

}  // namespace unshard_schedule_test
}  // namespace fairshard::shard

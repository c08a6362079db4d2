// The values of a bucket: where they lie, their states, their precision.
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/sharded_parameters.h"
#include <fairshard/shard/flat_bucket.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace fairshard::shard {
namespace flat_bucket_test {

using test::expect_error;
using test::initial_values;
using test::run_ranks;
using State = FlatBucket::State;

const std::vector<int64_t> kSizes{40, 7, 100};

/// All parameters in one bucket.
struct OneBucket {
  OneBucket(const comm::Group& group, std::vector<Parameter> given, const Precision& precision = {})
      : parameters(std::make_shared<std::vector<Parameter>>(std::move(given))),
        layout(std::make_shared<ShardLayout>(*parameters, group.size())),
        bucket(layout, 0, group.rank(), parameters, precision) {
    EXPECT_EQ(layout->buckets().size(), 1u);
  }

  const at::Tensor& operator[](size_t i) const { return (*parameters)[i].tensor; }
  void unshard(const comm::Group& group) {
    bucket.start_unshard(group);
    EXPECT_EQ(bucket.state(), State::kUnsharding);
    bucket.wait();
    EXPECT_EQ(bucket.state(), State::kUnsharded);
  }

  std::shared_ptr<std::vector<Parameter>> parameters;
  std::shared_ptr<const ShardLayout> layout;
  FlatBucket bucket;
};

void expect_initial(const OneBucket& one) {
  for (size_t i = 0; i < kSizes.size(); ++i) {
    EXPECT_TRUE(at::equal(one[i], initial_values(i, kSizes[i]))) << i;
  }
}

class FlatBucketRanks : public testing::TestWithParam<int> {};

TEST_P(FlatBucketRanks, ParametersKeepTheirValuesAndShapeWithinTheBucket) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    auto parameters = test::make_parameters(kSizes);
    const at::Tensor transposed = at::arange(12, at::kFloat).view({3, 4}).t().requires_grad_();
    parameters.push_back({"transposed", transposed});
    const OneBucket one(group, parameters);
    expect_initial(one);
    EXPECT_EQ(transposed.strides(), at::IntArrayRef({1, 4}));
    EXPECT_TRUE(at::equal(transposed, at::arange(12, at::kFloat).view({3, 4}).t()));
    for (const Slot& slot : one.bucket.layout().slots) {
      const at::Tensor& tensor = one[slot.parameter];
      EXPECT_EQ(tensor.const_data_ptr<float>(),
                one.bucket.flat().const_data_ptr<float>() + slot.offset);
      // Saving one must not save its neighbours.
      EXPECT_EQ(tensor.storage().nbytes(), tensor.nbytes());
    }
    EXPECT_TRUE(one.bucket.is_bound());
    EXPECT_EQ(one.bucket.state(), State::kUnsharded);
  });
}

TEST_P(FlatBucketRanks, AnUnshardBringsWhatEachRankOwns) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    OneBucket one(group, test::make_parameters(kSizes));
    one.bucket.shard().fill_(10 + group.rank());
    one.unshard(group);
    for (int rank = 0; rank < group.size(); ++rank) {
      const at::Tensor range = one.bucket.flat().narrow(0, one.layout->range_begin(0, rank),
                                                        one.layout->range_length(0, rank));
      EXPECT_TRUE(range.eq(10 + rank).all().item<bool>());
    }
  });
}

TEST_P(FlatBucketRanks, ShardedParametersHaveNoMemoryAndSayTheirName) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    OneBucket one(group, test::make_parameters(kSizes));
    one.bucket.reshard();
    one.bucket.reshard();  // nothing more happens
    EXPECT_EQ(one.bucket.state(), State::kSharded);
    EXPECT_EQ(one.bucket.flat().storage().nbytes(), 0u);
    EXPECT_EQ(one[1].sizes(), at::IntArrayRef({7}));
    expect_error([&] { one[1].clone(); }, {"'p1'", "has no values", "wait_for_parameters()"});
    EXPECT_TRUE(one.bucket.is_bound());
    one.unshard(group);
    expect_initial(one);
  });
}

TEST_P(FlatBucketRanks, WhatAutogradHasSavedComesBack) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    OneBucket one(group, test::make_parameters(kSizes));
    const at::Tensor loss = one[0].square().sum();
    one.bucket.reshard();
    one.unshard(group);
    loss.backward();
    EXPECT_TRUE(at::equal(one[0].grad(), 2 * initial_values(0, kSizes[0])));
  });
}

TEST_P(FlatBucketRanks, WhoReadsAParameterThatIsOnItsWayWaitsForIt) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    OneBucket one(group, test::make_parameters(kSizes));
    const at::Tensor before = one[0].detach();
    {
      const at::NoGradGuard no_grad;
      one.bucket.shard().add_(1);  // as a step does
    }
    one.bucket.mark_stepped();
    const auto version = one[0]._version();
    one.bucket.start_unshard(group);
    expect_error([&] { one[0].data_ptr(); }, {"being gathered", "wait_for_parameters"});
    const at::Tensor detached = one[1].variable_data();
    const at::Tensor stacked = at::cat({one[0], one[1], one[2]});
    EXPECT_TRUE(at::equal(one[0], initial_values(0, kSizes[0]) + 1));
    EXPECT_TRUE(at::equal(detached, initial_values(1, kSizes[1]) + 1));
    EXPECT_TRUE(at::equal(stacked.narrow(0, 0, kSizes[0]), initial_values(0, kSizes[0]) + 1));
    EXPECT_TRUE(stacked.requires_grad());
    EXPECT_EQ(one[0].data_ptr(), before.data_ptr()) << "it is where it was";
    EXPECT_EQ(one[0]._version(), version);
    EXPECT_EQ(one.bucket.state(), State::kUnsharding);
    EXPECT_TRUE(one.bucket.is_bound());
    one.bucket.wait();
    EXPECT_TRUE(one.bucket.is_bound());
    EXPECT_TRUE(at::equal(one[2], initial_values(2, kSizes[2]) + 1));
  });
}

TEST_P(FlatBucketRanks, DataGivenToAParameterThatIsOnItsWayIsKept) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    OneBucket one(group, test::make_parameters(kSizes));
    one.bucket.start_unshard(group);
    at::Tensor tensor = one[2];
    tensor.set_data(at::full({kSizes[2]}, 5.F));
    one.bucket.wait();
    EXPECT_FALSE(one.bucket.is_bound());
    one.bucket.bind();
    EXPECT_TRUE(at::equal(one[2], at::full({kSizes[2]}, 5.F)));
    EXPECT_TRUE(at::equal(one[0], initial_values(0, kSizes[0])));
  });
}

INSTANTIATE_TEST_SUITE_P(, FlatBucketRanks, testing::Values(1, 2, 3));

TEST(FlatBucket, DataGivenToAShardedParameterIsRefused) {
  run_ranks(1, [](const comm::Group& group) {
    OneBucket one(group, test::make_parameters(kSizes));
    one.bucket.reshard();
    at::Tensor tensor = one[2];
    tensor.set_data(at::zeros({kSizes[2]}));
    expect_error([&] { one.bucket.is_bound(); }, {"'p2'", "while it had no values"});
  });
}

TEST(FlatBucket, AStepMovesVersionCountersOfWhatIsTrained) {
  run_ranks(1, [](const comm::Group& group) {
    auto parameters = test::make_parameters(kSizes);
    parameters[1].tensor.requires_grad_(false);
    const auto shared = std::make_shared<std::vector<Parameter>>(parameters);
    // Trained and frozen parameters have buckets of their own; 0 is that of the last, trained one.
    const auto layout = std::make_shared<ShardLayout>(*shared, group.size());
    ASSERT_EQ(layout->buckets().size(), 2u);
    FlatBucket trained(layout, 0, 0, shared, {});
    FlatBucket frozen(layout, 1, 0, shared, {});
    EXPECT_TRUE(trained.is_trainable());
    EXPECT_FALSE(frozen.is_trainable());

    const int64_t version = parameters[0].tensor._version();
    const int64_t frozen_version = parameters[1].tensor._version();
    const at::Tensor loss = parameters[0].tensor.square().sum();
    trained.mark_stepped();
    frozen.mark_stepped();
    EXPECT_GT(parameters[0].tensor._version(), version);
    EXPECT_EQ(parameters[1].tensor._version(), frozen_version);
    expect_error([&] { loss.backward(); }, {"modified by an inplace operation"});
  });
}

TEST(FlatBucket, ReplacedDataIsTakenUpIfAllWasReplacedAlike) {
  run_ranks(1, [](const comm::Group& group) {
    OneBucket one(group, test::make_parameters(kSizes));
    at::Tensor first = one[0];
    first.set_data(one[0].to(at::kDouble));
    expect_error([&] { one.bucket.is_bound(); }, {"'p0'", "Double", "change the dtype of all"});
    for (const auto& parameter : *one.parameters) {
      at::Tensor tensor = parameter.tensor;
      tensor.set_data(tensor.to(at::kDouble));
    }
    EXPECT_FALSE(one.bucket.is_bound());
    one.bucket.bind();
    EXPECT_TRUE(one.bucket.is_bound());
    EXPECT_EQ(one.bucket.flat().scalar_type(), at::kDouble);
    EXPECT_TRUE(at::allclose(one[2], initial_values(2, kSizes[2]).to(at::kDouble)));

    first.set_data(at::zeros({3}, at::kDouble));
    expect_error([&] { one.bucket.is_bound(); }, {"'p0'", "[3]", "40 elements"});
  });
}

TEST_P(FlatBucketRanks, MasterWeightsKeepWhatRoundingWouldLose) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    OneBucket one(group, test::make_parameters(kSizes, at::kBFloat16),
                  {.master_weights = true, .gather_dtype = {}});
    ASSERT_TRUE(one.bucket.has_master());
    EXPECT_EQ(one.bucket.stepped_options().dtype(), at::kFloat);
    const auto before = one[2].detach().clone();
    // 2.0 + 0.001 is 2.0 in bfloat16: a hundred such steps would be lost without master weights.
    for (int step = 0; step < 100; ++step) {
      one.bucket.master().add_(1e-3);
      one.bucket.mark_stepped();
      one.unshard(group);
    }
    EXPECT_TRUE(at::allclose(one[2].to(at::kFloat), before.to(at::kFloat) + 0.1, 0, 0.011));
  });
}

TEST_P(FlatBucketRanks, MasterWeightsFollowWritesAndNothingElse) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    OneBucket one(group, test::make_parameters(kSizes, at::kBFloat16),
                  {.master_weights = true, .gather_dtype = {}});
    one.bucket.master().add_(1e-4);
    one.bucket.mark_stepped();
    one.unshard(group);
    const at::Tensor stepped = one.bucket.master().clone();
    one.bucket.update_master();
    EXPECT_TRUE(at::equal(one.bucket.master(), stepped));
    {
      const at::NoGradGuard no_grad;
      at::Tensor(one[0]).fill_(5);
    }
    one.bucket.update_master();
    for (const Piece& piece : one.layout->pieces(group.rank(), 0)) {
      const at::Tensor part = one.bucket.master().narrow(0, piece.offset, piece.numel());
      const at::Tensor old = stepped.narrow(0, piece.offset, piece.numel());
      EXPECT_TRUE(piece.parameter == 0 ? part.eq(5).all().item<bool>() : at::equal(part, old));
    }
  });
}

TEST_P(FlatBucketRanks, NarrowGathersRoundOnAllRanksAlike) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    OneBucket one(group, test::make_parameters(kSizes),
                  {.master_weights = false, .gather_dtype = at::kBFloat16});
    ASSERT_TRUE(one.bucket.has_master());
    one.bucket.mark_stepped();
    one.unshard(group);
    for (size_t i = 0; i < kSizes.size(); ++i) {
      const at::Tensor rounded = initial_values(i, kSizes[i]).to(at::kBFloat16).to(at::kFloat);
      EXPECT_TRUE(at::equal(one[i], rounded)) << i;
    }
    // What this rank owns has not lost anything.
    for (const Piece& piece : one.layout->pieces(group.rank(), 0)) {
      const at::Tensor exact = initial_values(piece.parameter, kSizes[piece.parameter]);
      EXPECT_TRUE(at::equal(one.bucket.master().narrow(0, piece.offset, piece.numel()),
                            exact.narrow(0, piece.begin, piece.numel())));
    }
  });
}

TEST(FlatBucket, AWiderGatherDtypeChangesNothing) {
  run_ranks(1, [](const comm::Group& group) {
    const OneBucket one(group, test::make_parameters(kSizes, at::kBFloat16),
                        {.master_weights = false, .gather_dtype = at::kFloat});
    EXPECT_FALSE(one.bucket.has_master());
  });
}

}  // namespace flat_bucket_test
}  // namespace fairshard::shard

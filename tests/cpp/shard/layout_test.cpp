// Who owns what: every element exactly once, evenly, at aligned places.
#include "support/expect_error.h"
#include <fairshard/shard/layout.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace fairshard::shard {
namespace plan_test {

std::vector<Parameter> parameters(const std::vector<int64_t>& sizes) {
  std::vector<Parameter> result;
  for (size_t i = 0; i < sizes.size(); ++i) {
    result.push_back({c10::str("p", i), at::zeros({sizes[i]}).requires_grad_()});
  }
  return result;
}

class PlanRanks : public testing::TestWithParam<int> {};

TEST_P(PlanRanks, EveryElementHasOneOwnerAndSharesAreEven) {
  const int ranks = GetParam();
  const std::vector<int64_t> sizes{1000, 3, 70000, 1, 1, 12345, 16, 40000};
  const ShardLayout plan(parameters(sizes), ranks,
                         LayoutOptions().bucket_bytes(1 << 17).first_bucket_bytes(1 << 12));
  std::vector<std::vector<int>> owners(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    owners[i].resize(sizes[i]);
  }
  std::vector<int64_t> owned(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Piece& piece : plan.pieces(rank)) {
      owned[rank] += piece.end - piece.begin;
      EXPECT_LE(piece.offset + piece.end - piece.begin, plan.range_length(piece.bucket, rank));
      EXPECT_EQ(piece.begin * 4 % 64, 0);
      EXPECT_EQ(piece.offset * 4 % 64, 0);
      for (int64_t i = piece.begin; i < piece.end; ++i) {
        owners[piece.parameter][i] += 1;
      }
    }
  }
  for (const auto& elements : owners) {
    for (const int count : elements) {
      ASSERT_EQ(count, 1);
    }
  }
  // At most the padding of one alignment per bucket and parameter apart.
  const auto [least, most] = std::minmax_element(owned.begin(), owned.end());
  const auto slack = static_cast<int64_t>(32 * (sizes.size() + plan.buckets().size() * ranks));
  EXPECT_LE(*most - *least, slack);
}

INSTANTIATE_TEST_SUITE_P(, PlanRanks, testing::Values(1, 2, 3, 8, 64));

TEST(Plan, BucketsFollowBackwardAndTheFirstIsSmall) {
  const ShardLayout plan(parameters({100, 100, 100, 100, 100, 100}), 2,
                         LayoutOptions().bucket_bytes(1000).first_bucket_bytes(400));
  ASSERT_EQ(plan.buckets().size(), 4u);
  EXPECT_EQ(plan.bucket_of(5), 0u);
  EXPECT_EQ(plan.bucket_of(4), 1u);
  EXPECT_EQ(plan.bucket_of(3), 1u);
  EXPECT_EQ(plan.bucket_of(0), 3u);
}

TEST(Plan, TheFirstBucketTakesWhatItNeedsToReachItsSizeButNoMoreThanOthers) {
  const auto first = [](int64_t reach) {
    const ShardLayout plan(parameters({100, 200, 10, 10}), 2,
                           LayoutOptions().bucket_bytes(1000).first_bucket_bytes(reach));
    return plan.buckets()[0].slots.size();
  };
  EXPECT_EQ(first(80), 2u);
  EXPECT_EQ(first(81), 3u);
  EXPECT_EQ(first(1 << 20), 3u);
}

TEST(Plan, KindsAreKeptApart) {
  auto list = parameters({10, 10, 10, 10, 10});
  list[1].tensor = at::zeros({10}, at::kBFloat16).requires_grad_();
  list[2].tensor.requires_grad_(false);
  list[3].group = 1;
  const ShardLayout plan(list, 2);
  EXPECT_EQ(plan.buckets().size(), 4u);
  EXPECT_EQ(plan.bucket_of(0), plan.bucket_of(4));
}

TEST(Plan, WithoutBucketsEveryParameterHasItsOwn) {
  const ShardLayout plan(parameters({10, 20, 30}), 2, LayoutOptions().bucket_bytes(0));
  EXPECT_EQ(plan.buckets().size(), 3u);
}

TEST(Plan, WholeTensorsAreBalancedBySize) {
  const std::vector<int64_t> sizes{1000, 3, 700, 1, 500, 200, 16, 400};
  const ShardLayout plan(parameters(sizes), 3,
                         LayoutOptions().partition(Partition::kTensor).bucket_bytes(3000));
  std::vector<int> owners(sizes.size(), -1);
  std::vector<int64_t> owned(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (const Piece& piece : plan.pieces(rank)) {
      EXPECT_EQ(piece.begin, 0);
      EXPECT_EQ(piece.end, sizes[piece.parameter]);
      EXPECT_EQ(owners[piece.parameter], -1);
      owners[piece.parameter] = rank;
      owned[rank] += piece.numel();
    }
  }
  EXPECT_EQ(std::count(owners.begin(), owners.end(), -1), 0);
  EXPECT_EQ(*std::max_element(owned.begin(), owned.end()), 1000);
  for (const Bucket& bucket : plan.buckets()) {
    EXPECT_EQ(bucket.bounds.size(), 4u);
    EXPECT_TRUE(std::is_sorted(bucket.bounds.begin(), bucket.bounds.end()));
  }
}

TEST(Plan, BucketsFollowAGivenOrder) {
  const ShardLayout plan(parameters({100, 100, 100, 100}), 2,
                         LayoutOptions().bucket_bytes(800).first_bucket_bytes(800), {2, 0, 3, 1});
  EXPECT_EQ(plan.bucket_of(2), 0u);
  EXPECT_EQ(plan.bucket_of(0), 0u);
  EXPECT_EQ(plan.bucket_of(3), 1u);
  EXPECT_EQ(plan.bucket_of(1), 1u);
}

TEST(Plan, ANegativeSizeIsRefused) {
  test::expect_error([] { ShardLayout(parameters({1}), 1, LayoutOptions().bucket_bytes(-1)); },
                     {"bucket_bytes", "-1"});
}

}  // namespace plan_test
}  // namespace fairshard::shard

// What a rank has of the reduced gradients, and where a step finds it.
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/sharded_parameters.h"
#include <fairshard/shard/flat_group.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>

namespace fairshard::shard {
namespace gradient_shards_test {

using test::run_ranks;

const std::vector<int64_t> kSizes{40, 7, 100, 33};

std::vector<at::Tensor> make_gradients() {
  std::vector<at::Tensor> result;
  for (const int64_t size : kSizes) {
    result.push_back(at::linspace(-1, 1, size) * static_cast<double>(size));
  }
  return result;
}

void expect_gradients(const FlatGroup& group, const std::vector<at::Tensor>& expected) {
  for (const Slice& slice : group.slices()) {
    const at::Tensor own = group.gradients().of(slice);
    const at::Tensor& whole = expected[slice.piece.parameter];
    ASSERT_EQ(own.defined(), whole.defined()) << "parameter " << slice.piece.parameter;
    EXPECT_TRUE(!own.defined() || at::equal(own, test::part_of(whole, slice)));
  }
}

class GradientShardsRanks : public testing::TestWithParam<int> {};

TEST_P(GradientShardsRanks, ASliceHasItsPartOfAGradientIfThereIsOne) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    FlatGroup flat(group, test::make_parameters(kSizes));
    expect_gradients(flat, std::vector<at::Tensor>(kSizes.size()));
    auto gradients = make_gradients();
    gradients[1] = at::Tensor();  // of no rank
    test::set_reduced(flat, gradients);
    expect_gradients(flat, gradients);
    flat.gradients().clear();
    expect_gradients(flat, std::vector<at::Tensor>(kSizes.size()));
  });
}

TEST_P(GradientShardsRanks, BucketsAreDroppedOneByOne) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    FlatGroup flat(group, test::make_parameters(kSizes), test::one_bucket_each());
    auto gradients = make_gradients();
    test::set_reduced(flat, gradients);
    for (size_t b = 0; b < kSizes.size(); ++b) {
      EXPECT_TRUE(flat.gradients().has(b));
      flat.gradients().drop(b);
      EXPECT_FALSE(flat.gradients().has(b));
      gradients[kSizes.size() - 1 - b] = at::Tensor();  // buckets begin with the last parameter
      expect_gradients(flat, gradients);
    }
  });
}

TEST_P(GradientShardsRanks, GradientsFollowTheirParametersToAnotherLayout) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    // Two parameters to a bucket, so that the order says which.
    const auto options =
        FlatOptions().layout(LayoutOptions().bucket_bytes(600).first_bucket_bytes(600));
    FlatGroup flat(group, test::make_parameters(kSizes), options);
    auto gradients = make_gradients();
    gradients[2] = at::Tensor();
    test::set_reduced(flat, gradients);
    const int version = flat.layout_version();
    flat.relayout({0, 1, 2, 3});
    EXPECT_GT(flat.layout_version(), version);
    EXPECT_EQ(flat.layout().order(), (std::vector<size_t>{0, 1, 2, 3}));
    expect_gradients(flat, gradients);
    for (size_t i = 0; i < kSizes.size(); ++i) {
      EXPECT_TRUE(at::equal(flat.parameters()[i].tensor, test::initial_values(i, kSizes[i])));
    }
  });
}

TEST_P(GradientShardsRanks, AGradOfAParameterItselfCountsInstead) {
  run_ranks(GetParam(), [](const comm::Group& group) {
    const at::Tensor matrix = at::zeros({3, 50}).t().requires_grad_();  // 50 x 3, by columns
    FlatGroup flat(group, {{"matrix", matrix}});
    test::set_reduced(flat, {at::ones({150})});
    const at::Tensor by_rows = at::arange(150, at::kFloat).view({50, 3});
    matrix.mutable_grad() = by_rows;
    // A slice has elements in the parameter's order of memory.
    expect_gradients(flat, {by_rows.t().contiguous()});
  });
}

INSTANTIATE_TEST_SUITE_P(, GradientShardsRanks, testing::Values(1, 2, 3));

TEST(GradientShards, AllMemoryIsWhatScalingNeeds) {
  run_ranks(2, [](const comm::Group& group) {
    FlatGroup flat(group, test::make_parameters(kSizes), test::one_bucket_each());
    const auto gradients = make_gradients();
    test::set_reduced(flat, gradients);
    for (const at::Tensor& part : flat.gradients().memory()) {
      part.mul_(2);
    }
    std::vector<at::Tensor> twice;
    for (const at::Tensor& gradient : gradients) {
      twice.push_back(gradient * 2);
    }
    expect_gradients(flat, twice);
  });
}

TEST(GradientShards, ASparseGradIsRefusedByName) {
  run_ranks(1, [](const comm::Group& group) {
    const at::Tensor table = at::zeros({4, 2}).requires_grad_();
    const FlatGroup flat(group, {{"table", table}});
    table.mutable_grad() = at::zeros({4, 2}).to_sparse();
    test::expect_error([&] { flat.gradients().of(flat.slices()[0]); }, {"'table'", "dense"});
  });
}

}  // namespace gradient_shards_test
}  // namespace fairshard::shard

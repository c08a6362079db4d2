// Norms over all ranks, against torch's on one.
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/sharded_parameters.h"
#include <fairshard/shard/clip.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

namespace fairshard::shard {
namespace clip_test {

using test::run_ranks;

const std::vector<int64_t> kSizes{40, 7, 100};

std::vector<at::Tensor> make_gradients() {
  std::vector<at::Tensor> result;
  for (const int64_t size : kSizes) {
    result.push_back(at::linspace(-3, 2, size));
  }
  return result;
}

std::shared_ptr<FlatGroup> make_group(const comm::Group& group,
                                      const std::vector<at::Tensor>& gradients) {
  auto result =
      std::make_shared<FlatGroup>(group, test::make_parameters(kSizes), test::one_bucket_each());
  test::set_reduced(*result, gradients);
  return result;
}

void expect_gradients(const FlatGroup& group, const std::vector<at::Tensor>& expected) {
  for (const Slice& slice : group.slices()) {
    const at::Tensor own = group.gradients().of(slice);
    ASSERT_TRUE(own.defined());
    EXPECT_TRUE(at::allclose(own, test::part_of(expected[slice.piece.parameter], slice)));
  }
}

class ClipRanks : public testing::TestWithParam<std::tuple<int, double>> {};

TEST_P(ClipRanks, TheNormIsThatOfAllGradients) {
  const auto [ranks, type] = GetParam();
  run_ranks(ranks, [type = type](const comm::Group& group) {
    const auto gradients = make_gradients();
    const double norm = at::cat(gradients).norm(type).item<double>();
    const auto flat = make_group(group, gradients);
    EXPECT_NEAR(clip_gradients({flat}, 2 * norm, type).item<double>(), norm, 1e-4 * norm);
    expect_gradients(*flat, gradients);  // below the limit nothing changes
    EXPECT_NEAR(clip_gradients({flat}, norm / 4, type).item<double>(), norm, 1e-4 * norm);
    std::vector<at::Tensor> scaled;
    for (const at::Tensor& gradient : gradients) {
      scaled.push_back(gradient / 4);
    }
    expect_gradients(*flat, scaled);
  });
}

INSTANTIATE_TEST_SUITE_P(
    , ClipRanks,
    testing::Combine(testing::Values(1, 2, 3),
                     testing::Values(1.0, 2.0, 3.0, std::numeric_limits<double>::infinity())));

TEST(Clip, SeveralGroupsHaveOneNorm) {
  run_ranks(2, [](const comm::Group& group) {
    const auto gradients = make_gradients();
    const auto a = make_group(group, gradients);
    const auto b = make_group(group, gradients);
    const double norm = std::sqrt(2.0) * at::cat(gradients).norm().item<double>();
    EXPECT_NEAR(clip_gradients({a, b}, norm / 2, 2).item<double>(), norm, 1e-4 * norm);
    std::vector<at::Tensor> halves;
    for (const at::Tensor& gradient : gradients) {
      halves.push_back(gradient / 2);
    }
    expect_gradients(*a, halves);
    expect_gradients(*b, halves);
  });
}

TEST(Clip, OnlyWhatIsSelectedCountsAndIsScaled) {
  run_ranks(2, [](const comm::Group& group) {
    auto gradients = make_gradients();
    const auto flat = make_group(group, gradients);
    const at::Tensor selected = flat->parameters()[2].tensor;
    const double norm = gradients[2].norm().item<double>();
    const auto selects = [&](const at::Tensor& parameter) { return parameter.is_same(selected); };
    EXPECT_NEAR(clip_gradients({flat}, norm / 2, 2, selects).item<double>(), norm, 1e-4 * norm);
    gradients[2] = gradients[2] / 2;
    expect_gradients(*flat, gradients);
  });
}

TEST(Clip, WithoutGradientsTheNormIsZero) {
  run_ranks(2, [](const comm::Group& group) {
    const auto flat = make_group(group, std::vector<at::Tensor>(kSizes.size()));
    EXPECT_EQ(clip_gradients({flat}, 1, 2).item<double>(), 0);
  });
}

TEST(Clip, LimitsThatMakeNoSenseAreRefused) {
  run_ranks(1, [](const comm::Group& group) {
    const auto flat = make_group(group, make_gradients());
    test::expect_error([&] { clip_gradients({flat}, -1, 2); }, {"max_norm is -1"});
    test::expect_error([&] { clip_gradients({flat}, 1, 0); }, {"norm_type is 0"});
  });
}

}  // namespace clip_test
}  // namespace fairshard::shard

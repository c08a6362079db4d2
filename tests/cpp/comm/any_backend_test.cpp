// What every group does, whatever moves its tensors, and wherever they are: on the device of this
// test, and on the CPU even if the group has no backend for it.
#include "support/expect_error.h"
#include "support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

namespace fairshard::comm {
namespace any_backend_test {

std::vector<at::Device> devices() {
  const std::set<at::DeviceType> types{test::device().type(), at::kCPU};
  return {types.begin(), types.end()};
}

/// Throws, so that a rank that fails stops its peers.
void require(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  TORCH_CHECK(found.cpu().allclose(expected.to(found.scalar_type())), what, ": ", found.cpu(),
              " is not ", expected);
}

at::Tensor numbers(int rank, int64_t count = 8) {
  return at::arange(count, at::kFloat) + 10 * rank;
}

class AnyBackendRanks : public testing::TestWithParam<int> {};

TEST_P(AnyBackendRanks, Collectives) {
  const int ranks = GetParam();
  test::run_ranks(ranks, [&](const Group& group) {
    const int rank = group.rank();
    at::Tensor sum = numbers(0);
    for (int i = 1; i < ranks; ++i) {
      sum = sum + numbers(i);
    }
    for (const at::Device device : devices()) {
      const at::Tensor own = numbers(rank).to(device);
      const at::Tensor reduced = own.clone();
      all_reduce(group, reduced, ReduceOp::kSum, "sum").wait();
      require(reduced, sum, "all_reduce");
      const at::Tensor highest = own.to(at::kByte);
      all_reduce(group, highest, ReduceOp::kMax).wait();
      require(highest, numbers(ranks - 1), "all_reduce of bytes");
      const at::Tensor copy = own.clone();
      broadcast(group, copy, ranks - 1).wait();
      require(copy, numbers(ranks - 1), "broadcast");
      const at::Tensor gathered = at::empty({ranks, 8}, own.options());
      all_gather(group, gathered, own).wait();
      const at::Tensor part = at::empty({8}, own.options());
      reduce_scatter(group, part, gathered, ReduceOp::kAvg).wait();
      require(part, numbers(rank), "reduce_scatter of what all_gather gave");
      const at::Tensor wide = at::empty({8}, own.options());
      reduce_scatter(group, wide, gathered.to(at::kBFloat16)).wait();
      require(wide, numbers(rank) * ranks, "reduce_scatter that widens");
      const at::Tensor shifted = at::empty_like(own);
      shift(group, shifted, own, 1).wait();
      require(shifted, numbers((rank + ranks - 1) % ranks), "shift");
      barrier(group);
    }
  });
}

TEST_P(AnyBackendRanks, UnequalParts) {
  const int ranks = GetParam();
  test::run_ranks(ranks, [&](const Group& group) {
    Bounds bounds{0};  // rank r has 3 r elements: rank 0 has none
    for (int rank = 0; rank < ranks; ++rank) {
      bounds.push_back(bounds.back() + 3 * rank);
    }
    const int rank = group.rank();
    for (const at::Device device : devices()) {
      const at::Tensor own = at::full({3 * rank}, rank + 1.0).to(device);
      const at::Tensor gathered = at::zeros({bounds.back()}, device);
      all_gather(group, gathered, own, "unequal", bounds).wait();
      at::Tensor expected = at::zeros({bounds.back()});
      for (int r = 0; r < ranks; ++r) {
        expected.slice(0, bounds[r], bounds[r + 1]).fill_(r + 1);
      }
      require(gathered, expected, "all_gather");
      const at::Tensor part = at::zeros({3 * rank}, device);
      reduce_scatter(group, part, gathered, ReduceOp::kSum, "unequal", bounds).wait();
      require(part, at::full({3 * rank}, ranks * (rank + 1.0)), "reduce_scatter");
    }
  });
}

TEST_P(AnyBackendRanks, SubgroupsAndDuplicates) {
  const int ranks = GetParam();
  test::run_ranks(ranks, [&](const Group& group) {
    const Group others = group.duplicate();
    const Group pair = group.subgroup({0, ranks - 1});
    for (const at::Device device : devices()) {
      const at::Tensor first = at::ones({4}, device);
      const at::Tensor second = at::ones({4}, device);
      Work early = all_reduce(group, first);
      all_reduce(others, second).wait();
      early.wait();
      require(first, at::full({4}, ranks), "the group");
      require(second, at::full({4}, ranks), "its duplicate");
      if (pair.rank() >= 0) {
        const at::Tensor tensor = at::ones({4}, device);
        all_reduce(pair, tensor).wait();
        require(tensor, at::full({4}, 2), "a subgroup");
      }
    }
    std::vector<at::Tensor> tensors{numbers(group.rank()).to(test::device()),
                                    numbers(group.rank(), 6).view({2, 3}).t().to(test::device())};
    broadcast_all(group, tensors, 1);
    require(tensors[0], numbers(1), "broadcast_all");
    require(tensors[1], numbers(1, 6).view({2, 3}).t(), "broadcast_all of other strides");
  });
}

INSTANTIATE_TEST_SUITE_P(, AnyBackendRanks, testing::Values(2, 3, 4));

TEST(AnyBackend, WhatTheGroupDoesNotHaveIsSaid) {
  test::expect_error(
      [] { launch(1, [](const Group&) {}, LaunchOptions().backend("carrier pigeon")); },
      {"carrier pigeon", "'nccl'", "'fairshard'"});
}

}  // namespace any_backend_test
}  // namespace fairshard::comm

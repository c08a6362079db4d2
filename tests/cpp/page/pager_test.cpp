// Slices are moved between two arenas, never more of them than there are slots, and autograd finds
// what it has saved.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/page/host_memory.h>
#include <fairshard/page/pager.h>
#include <fairshard/page/slicing.h>

#include <gtest/gtest.h>

namespace fairshard::page {
namespace pager_test {

using test::Values;

/// Slices that multiply by a matrix each, paged.
struct Chain {
  explicit Chain(int64_t slices, const PagerOptions& options = {}) {
    torch::manual_seed(1);
    std::vector<Values> lists;
    for (int64_t i = 0; i < slices; ++i) {
      weights.push_back(torch::randn({8, 8}) / 3);
      weights.back().requires_grad_();
      lists.push_back({weights.back()});
    }
    plain = weights;
    for (auto& weight : plain) {
      weight = weight.detach().clone().requires_grad_();
    }
    pager = std::make_shared<Pager>(lists, Values{}, options);
  }

  at::Tensor forward(at::Tensor x) {
    pager->begin(at::GradMode::is_enabled());
    for (size_t i = 0; i < weights.size(); ++i) {
      x = pager->cross(static_cast<int64_t>(i), {x})[0];
      x = at::tanh(at::matmul(x, weights[i].t()));
    }
    return pager->cross(Pager::kNone, {x})[0];
  }
  at::Tensor forward_plainly(at::Tensor x) {
    for (const auto& weight : plain) {
      x = at::tanh(at::matmul(x, weight.t()));
    }
    return x;
  }
  void expect_same_gradients() {
    for (size_t i = 0; i < weights.size(); ++i) {
      ASSERT_TRUE(weights[i].grad().defined());
      EXPECT_TRUE(at::equal(weights[i].grad(), plain[i].grad())) << "slice " << i;
      EXPECT_TRUE(at::equal(weights[i], plain[i])) << "slice " << i;
    }
  }

  Values weights;
  Values plain;
  std::shared_ptr<Pager> pager;
};

at::Tensor input() { return test::input(0, 0).narrow(1, 0, 8).contiguous(); }

TEST(Pager, GradientsAreThoseOfPlainAutogradForAllNumbersOfSlots) {
  for (const int64_t slices : {1, 2, 3, 7}) {
    for (const int64_t prefetch : {0, 1, 2, 9}) {
      Chain chain(slices, PagerOptions().prefetch(prefetch));
      for (int step = 0; step < 2; ++step) {  // the second adds to the first
        const auto ours = chain.forward(input());
        const auto theirs = chain.forward_plainly(input());
        EXPECT_TRUE(at::equal(ours, theirs));
        test::loss_of(ours).backward();
        test::loss_of(theirs).backward();
        chain.expect_same_gradients();
      }
      const PagerReport report = chain.pager->report();
      EXPECT_EQ(report.slots, std::min(slices, prefetch + 2));
      EXPECT_LE(report.most_filled, report.slots);
      EXPECT_EQ(report.device_bytes, report.slots * 256);
      EXPECT_EQ(report.bytes_out, slices * 256);
    }
  }
}

TEST(Pager, AWeightHasDeviceMemoryOnlyWhileItsSliceIsInASlot) {
  Chain chain(5);
  const auto* host = chain.weights[0].const_data_ptr();
  chain.pager->begin(true);
  auto x = chain.pager->cross(0, {input()})[0];
  EXPECT_NE(chain.weights[0].const_data_ptr(), host);
  const at::Tensor saved = chain.weights[0].t();
  for (int64_t i = 1; i < 5; ++i) {
    chain.pager->cross(i, {x});
  }
  EXPECT_EQ(chain.weights[0].const_data_ptr(), host);
  EXPECT_EQ(saved.const_data_ptr(), nullptr);  // emptied, whoever still refers to it
  chain.pager->cross(Pager::kNone, {x});
}

TEST(Pager, UnchangedWeightsAreNotCopiedBackAndBudgetKeepsSlices) {
  const auto moved = [](const PagerOptions& options) {
    Chain chain(6, options);
    test::loss_of(chain.forward(input())).backward();
    const PagerReport report = chain.pager->report();
    EXPECT_EQ(report.bytes_out, 6 * 256);  // gradients
    return report.bytes_in / 256;
  };
  EXPECT_EQ(moved(PagerOptions()), 6 + 6 - 3);  // forward, and what has left its slot by backward
  EXPECT_EQ(moved(PagerOptions().device_budget_bytes(5 * 256)), 6 + 6 - 5);
  EXPECT_EQ(moved(PagerOptions().device_budget_bytes(100 * 256)), 6);
}

TEST(Pager, EvaluationCopiesOnceAndLeavesParametersOnTheHost) {
  Chain chain(6);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(chain.forward(input()), chain.forward_plainly(input())));
  EXPECT_EQ(chain.pager->report().fills, 6);
  chain.weights[2].mul_(2);  // what is written to a parameter counts in the next pass
  chain.plain[2].mul_(2);
  EXPECT_TRUE(at::equal(chain.forward(input()), chain.forward_plainly(input())));
  chain.weights[3].set_data(at::ones({8, 8}));  // also in other memory
  chain.plain[3].set_data(at::ones({8, 8}));
  EXPECT_TRUE(at::equal(chain.forward(input()), chain.forward_plainly(input())));
}

TEST(Pager, AWeightThatChangesBeforeBackwardIsNoticed) {
  Chain chain(4);
  const auto output = chain.forward(input());
  {
    const at::NoGradGuard no_grad;
    chain.weights[1].mul_(2);
  }
  test::expect_error([&] { test::loss_of(output).backward(); }, {"modified by an inplace"});
  // And training goes on.
  chain.plain[1].set_data(chain.weights[1].detach().clone());
  for (auto& weight : chain.weights) {
    weight.mutable_grad().reset();
  }
  test::loss_of(chain.forward(input())).backward();
  test::loss_of(chain.forward_plainly(input())).backward();
  chain.expect_same_gradients();
}

TEST(Pager, TwoForwardsBeforeOneBackwardAndAGraphThatIsKept) {
  Chain chain(5);
  const auto loss = [&](auto forward) {
    return test::loss_of(forward(input())) + test::loss_of(forward(input() * 2));
  };
  const auto ours = loss([&](const at::Tensor& x) { return chain.forward(x); });
  const auto theirs = loss([&](const at::Tensor& x) { return chain.forward_plainly(x); });
  for (int i = 0; i < 2; ++i) {
    ours.backward({}, /*retain_graph=*/true);
    theirs.backward({}, /*retain_graph=*/true);
    chain.expect_same_gradients();
  }
}

TEST(Pager, SlicesBeyondTheHostBudgetLieInFiles) {
  Chain chain(6, PagerOptions().host_budget_bytes(4 * 256).spill_dir(testing::TempDir()));
  test::loss_of(chain.forward(input())).backward();
  test::loss_of(chain.forward_plainly(input())).backward();
  chain.expect_same_gradients();
  const PagerReport report = chain.pager->report();
  EXPECT_EQ(report.host_bytes, 4 * 256);
  EXPECT_EQ(report.file_bytes, 8 * 256);
}

TEST(Pager, BadInputIsNamed) {
  const auto make = [](const PagerOptions& options) { return [=] { Chain chain(4, options); }; };
  test::expect_error(make(PagerOptions().device_budget_bytes(300)),
                     {"device_budget_bytes is 300", "2 slots of 256"});
  test::expect_error(make(PagerOptions().host_budget_bytes(300)), {"300", "spill_dir"});
  test::expect_error(make(PagerOptions().host_budget_bytes(0).spill_dir("/nowhere")),
                     {"'/nowhere'", "No such file"});
  test::expect_error(make(PagerOptions().prefetch(-1)), {"prefetch is -1"});
  test::expect_error(make(PagerOptions().device(at::Device("cuda:99"))),
                     {"cuda:99 is not available"});
}

TEST(HostMemory, SaysHowMuchWasAskedForAndWhatHelps) {
  const int64_t much = int64_t{1} << 50;
  test::expect_error([&] { HostMemory::in_ram(much, false); },
                     {"1048576.00 GiB", "are available", "param_dtype", "spill_dir"});
  test::expect_error([&] { HostMemory::in_file(much, testing::TempDir()); },
                     {"spill_dir", "no room for 1048576.00 GiB"});
}

TEST(HostMemory, TensorsOutliveIt) {
  at::Tensor tensor = HostMemory::in_ram(1000, false)->tensor(512, {4}, {1}, at::kFloat);
  EXPECT_TRUE(at::equal(tensor, at::zeros({4})));
  tensor.fill_(3);
  EXPECT_EQ(tensor.sum().item<float>(), 12);
}

TEST(Slicing, TheLargestSliceIsAsSmallAsCanBe) {
  const auto split = [](const std::vector<int64_t>& sizes, int64_t slices) {
    std::vector<Values> blocks;
    for (const int64_t size : sizes) {
      blocks.push_back({at::empty({size})});
    }
    return slice_blocks(blocks, {}, slices).slice_of_block;
  };
  using Places = std::vector<int64_t>;
  EXPECT_EQ(split({1, 1, 1, 1, 1, 1}, 3), (Places{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(split({9, 1, 1, 1}, 2), (Places{0, 1, 1, 1}));
  EXPECT_EQ(split({5, 5}, 7), (Places{0, 1}));
  EXPECT_EQ(split({0, 4, 0, 4, 0}, 2), (Places{0, 0, 0, 1, 1}));
  test::expect_error([&] { split({1}, 0); }, {"num_slices is 0"});
}

TEST(Slicing, TiedWeightsAreCommonIfTheirSlicesDiffer) {
  const at::Tensor tied = at::empty({4});
  const at::Tensor near = at::empty({4});
  const at::Tensor other = at::empty({4});
  const auto slicing = slice_blocks({{tied, near}, {near}, {other}, {tied}}, {other}, 2);
  EXPECT_EQ(slicing.slice_of_block, (std::vector<int64_t>{0, 0, 1, 1}));
  EXPECT_EQ(slicing.common.size(), 2);
  EXPECT_TRUE(slicing.common[0].is_same(tied));
  EXPECT_EQ(slicing.slices[0].size(), 1);
  EXPECT_TRUE(slicing.slices[1].empty());
}

}  // namespace pager_test
}  // namespace fairshard::page

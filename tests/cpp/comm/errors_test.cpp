// Everything that can be wrong with a collective gets a message, in time, on every rank.
#include "support/expect_error.h"
#include <fairshard/comm.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <functional>
#include <limits>
#include <mutex>

namespace fairshard::comm {
namespace errors_test {

/// Runs `fn` on every rank and returns what each one threw.
std::vector<std::string> errors_of_ranks(int ranks, const RankFunction& fn, double timeout_s = 60) {
  std::mutex mutex;
  std::vector<std::string> errors(ranks);
  launch_threads(
      ranks,
      [&](Group group) {
        const std::string error = test::error_of([&] { fn(group); });
        std::lock_guard lock(mutex);
        errors[group.rank()] = error;
      },
      LaunchOptions().timeout_s(timeout_s));
  return errors;
}

void expect_words(const std::string& message, const std::vector<std::string>& words) {
  test::expect_error([&] { TORCH_CHECK(message.empty(), message); }, words);
}

TEST(Errors, DifferentSizesAreNamedOnBothRanks) {
  const auto errors = errors_of_ranks(2, [](Group group) {
    all_reduce(group, at::ones({10 + group.rank()}), ReduceOp::kSum, "bucket 3").wait();
  });
  expect_words(errors[0], {"all_reduce #0", "'bucket 3'", "rank 0 of 2", "Float[10]", "Float[11]"});
  expect_words(errors[1], {"all_reduce #0", "rank 1 of 2", "rank 0 called", "Float[10]"});
}

TEST(Errors, LargeTensorsOfDifferentSizesDoNoHarm) {
  const auto errors = errors_of_ranks(2, [](Group group) {
    const int64_t part = 100000 + 50000 * group.rank();
    reduce_scatter(group, at::empty({part}), at::ones({2 * part})).wait();
  });
  expect_words(errors[0], {"reduce_scatter", "Float[200000]", "Float[300000]"});
  expect_words(errors[1], {"reduce_scatter", "Float[200000]", "Float[300000]"});
}

TEST(Errors, DifferentDtypesCollectivesReductionsAndRootsAreNamed) {
  using Start = std::function<Work(const Group&)>;
  const auto tensor = [](at::ScalarType dtype) { return at::ones({8}, dtype); };
  const std::vector<std::pair<std::array<Start, 2>, std::vector<std::string>>> cases{
      {{[&](const Group& g) { return all_reduce(g, tensor(at::kFloat)); },
        [&](const Group& g) { return all_reduce(g, tensor(at::kDouble)); }},
       {"Float[8]", "Double[8]"}},
      {{[&](const Group& g) { return all_reduce(g, tensor(at::kFloat)); },
        [&](const Group& g) { return broadcast(g, tensor(at::kFloat), 0); }},
       {"all_reduce", "broadcast"}},
      {{[&](const Group& g) { return all_reduce(g, tensor(at::kFloat), ReduceOp::kSum); },
        [&](const Group& g) { return all_reduce(g, tensor(at::kFloat), ReduceOp::kMax); }},
       {"(sum)", "(max)"}},
      {{[&](const Group& g) { return broadcast(g, tensor(at::kFloat), 0); },
        [&](const Group& g) { return broadcast(g, tensor(at::kFloat), 1); }},
       {"from rank 0", "from rank 1"}}};
  for (const auto& [starts, words] : cases) {
    for (const auto& error :
         errors_of_ranks(2, [&](Group group) { starts[group.rank()](group).wait(); })) {
      expect_words(error, words);
    }
  }
}

TEST(Errors, APeerThatDoesNotComeIsNamedAfterTheTimeout) {
  const auto errors = errors_of_ranks(
      2,
      [](Group group) {
        const auto store = group.process_group()->getStore();
        if (group.rank() == 1) {  // stays connected, but elsewhere
          store->wait({"rank 0 gave up"}, std::chrono::seconds(60));
          return;
        }
        const std::string error = test::error_of(
            [&] { all_reduce(group, at::ones({4}), ReduceOp::kSum, "lonely").wait(); });
        store->set("rank 0 gave up", "1");
        TORCH_CHECK(error.empty(), error);
      },
      0.3);
  expect_words(errors[0], {"all_reduce #0", "'lonely'", "rank 0 of 2", "rank 1", "timed out"});
  EXPECT_EQ(errors[1], "");
}

TEST(Errors, ARankThatLeavesIsNoticed) {
  const auto errors = errors_of_ranks(3, [](Group group) {
    TORCH_CHECK(group.rank() != 1, "rank 1 has had enough");
    all_reduce(group, at::ones({100000})).wait();
  });
  // Once the first of the two has noticed and left, the second may see that instead.
  expect_words(errors[0], {"all_reduce #0", "has ended"});
  expect_words(errors[2], {"all_reduce #0", "has ended"});
  EXPECT_TRUE(errors[0].find("from rank 1") != std::string::npos ||
              errors[2].find("from rank 1") != std::string::npos)
      << errors[0] << errors[2];
}

TEST(Errors, ABrokenGroupStaysBrokenAndSaysWhy) {
  const auto errors = errors_of_ranks(2, [](Group group) {
    EXPECT_NE(test::error_of([&] { all_reduce(group, at::ones({2 + group.rank()})).wait(); }), "");
    all_reduce(group, at::ones({2}), ReduceOp::kSum, "next").wait();
  });
  expect_words(errors[0], {"'next'", "failed before", "all_reduce #0", "Float[3]"});
}

TEST(Errors, TheFirstFailedRankIsReportedByLaunchThreads) {
  test::expect_error(
      [] {
        launch_threads(3, [](Group group) {
          TORCH_CHECK(group.rank() != 2, "something particular");
          barrier(group);
        });
      },
      {"rank 2 of 3", "something particular"});
}

TEST(Errors, GroupsLetGoOfUnfinishedWorkWithoutBlocking) {
  const auto start = std::chrono::steady_clock::now();
  for (const int64_t numel : {4, 1 << 20}) {  // long messages are posted by another thread
    launch_threads(2, [&](Group group) {
      {
        const Group inner = group.subgroup({0, 1});
        if (group.rank() == 0) {  // rank 1 never comes
          all_reduce(inner, at::ones({numel}));
          broadcast(inner, at::ones({numel}), 0);
        }
        barrier(group);
      }
      barrier(group);
    });
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));  // timeout: 300
}

TEST(Errors, TensorsThatCannotTravel) {
  launch_threads(1, [](Group group) {
    const at::Tensor ok = at::ones({4, 4});
    test::expect_error([&] { all_reduce(group, at::Tensor(), ReduceOp::kSum, "w"); },
                       {"all_reduce 'w'", "undefined"});
    test::expect_error([&] { all_reduce(group, ok.t()); }, {"all_reduce", "not contiguous"});
    test::expect_error([&] { all_reduce(group, ok.to_sparse()); }, {"all_reduce", "dense"});
    test::expect_error([&] { all_reduce(group, ok.to(at::kBool), ReduceOp::kSum, "mask"); },
                       {"all_reduce 'mask'", "Bool", "cannot be reduced"});
    test::expect_error([&] { all_reduce(group, ok.to(at::kComplexFloat), ReduceOp::kMax); },
                       {"ComplexFloat"});
    test::expect_error([&] { all_reduce(group, ok.to(at::kLong), ReduceOp::kAvg); },
                       {"Long", "average"});
    test::expect_error([&] { broadcast(group, ok, 1); }, {"root 1", "group of 1"});
    test::expect_error([&] { broadcast(group, ok, -1); }, {"root -1"});
    test::expect_error([&] { all_gather(group, at::empty({3}), at::empty({2})); },
                       {"all_gather", "3", "2"});
    test::expect_error([&] { all_gather(group, at::empty({2}), at::empty({2}, at::kLong)); },
                       {"all_gather", "Float", "Long"});
    test::expect_error([&] { reduce_scatter(group, at::empty({2}, at::kHalf), at::empty({2})); },
                       {"reduce_scatter", "Half", "Float"});
  });
}

TEST(Errors, BadSubgroupsAndTimeouts) {
  launch_threads(1, [](Group group) {
    test::expect_error([&] { group.subgroup({}); }, {"at least one"});
    test::expect_error([&] { group.subgroup({1}); }, {"rank 1", "group of 1"});
    test::expect_error([&] { group.subgroup({0, 0}); }, {"ascending"});
    test::expect_error([&] { init_process_group(GroupOptions().timeout_s(0)); },
                       {"timeout_s", "0"});
    test::expect_error([&] { barrier(Group(nullptr)); }, {"barrier", "not in the group"});
  });
  test::expect_error([] { launch_threads(0, [](Group) {}); }, {"ranks is 0"});
}

TEST(Errors, ARankOutsideOfASubgroupKnowsItsSizeAndIsToldThatItIsNotInIt) {
  launch_threads(3, [](Group group) {
    const Group pair = group.subgroup({0, 2});
    TORCH_CHECK(pair.size() == 2, "size ", pair.size());
    TORCH_CHECK(pair.local_rank() == group.rank(), "local rank ", pair.local_rank());
    if (group.rank() != 1) {
      barrier(pair);
      return;
    }
    TORCH_CHECK(pair.rank() == -1, "rank ", pair.rank());
    TORCH_CHECK(pair.traffic().collectives == 0, "traffic");
    const std::vector<std::function<void()>> uses{
        [&] { pair.timeout(); },         [&] { pair.control_device(); },
        [&] { pair.subgroup({0}); },     [&] { pair.duplicate(); },
        [&] { pair.new_store("test"); }, [&] { pair.backend_name(at::kCPU); },
        [&] { pair.process_group(); },   [&] { barrier(pair); }};
    for (const auto& use : uses) {
      test::expect_error(use, {"not in the group", "of 2 ranks"});
    }
  });
}

TEST(Errors, TimesThatNobodyCanWaitForAreNamed) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double seconds : {infinity, -infinity, nan, 1e300, 1e10, -1.0, 0.0}) {
    const std::vector<std::string> words{"timeout_s is ", "above 0 and at most"};
    test::expect_error([&] { init_process_group(GroupOptions().timeout_s(seconds)); }, words);
    test::expect_error([&] { launch(1, [](Group) {}, LaunchOptions().timeout_s(seconds)); }, words);
    test::expect_error([&] { launch_threads(1, [](Group) {}, LaunchOptions().timeout_s(seconds)); },
                       words);
  }
  for (const double seconds : {infinity, nan, 1e10, -1.0}) {
    test::expect_error([&] { launch(1, [](Group) {}, LaunchOptions().grace_s(seconds)); },
                       {"grace_s is ", "from 0 to"});
  }
  test::expect_error([] { launch(1, [](Group) {}, LaunchOptions().threads(-3)); },
                     {"threads is -3", "at least 0"});
}

TEST(Errors, BoundsThatFitNothingAreNamed) {
  launch_threads(1, [](Group group) {
    const at::Tensor tensor = at::ones({10});
    const auto gather = [&](const Bounds& bounds) {
      return [&, bounds] { all_gather(group, tensor, tensor, "", bounds); };
    };
    test::expect_error(gather({0, 5, 10}), {"needs 2 bounds", "got 3"});
    test::expect_error(gather({0, 9}), {"ascend from 0 to 10", "0, 9"});
    test::expect_error([&] { all_gather(group, tensor, at::ones({9}), "", {0, 10}); },
                       {"has 9 elements", "has 10"});
  });
}

}  // namespace errors_test
}  // namespace fairshard::comm

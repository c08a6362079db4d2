// Collectives over Gloo, with ranks as threads, against sums taken here and against c10d's own.
#include <fairshard/comm.h>
#include <fairshard/comm/waits.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace fairshard::comm {
namespace collectives_test {

// gtest's checks in rank threads would be fine, but a failed rank must also stop its peers.
void require(bool condition, const std::string& what) { TORCH_CHECK(condition, what); }

/// Numbers that differ by rank and position and whose sums depend on the order of summation.
at::Tensor numbers(int rank, int64_t count, at::ScalarType dtype = at::kFloat) {
  at::Tensor values = at::arange(count, at::kDouble).add(17 * rank + 1).sin();
  if (!at::isFloatingType(dtype)) {
    values = values.mul(40);
  }
  return values.to(dtype);
}

at::Tensor reduced(int ranks, int64_t count, at::ScalarType dtype, ReduceOp op) {
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  const auto wide = is_half ? at::kFloat : dtype;
  at::Tensor result = numbers(0, count, dtype).to(wide);
  for (int rank = 1; rank < ranks; ++rank) {
    const at::Tensor next = numbers(rank, count, dtype).to(wide);
    result = op == ReduceOp::kMin   ? at::minimum(result, next)
             : op == ReduceOp::kMax ? at::maximum(result, next)
                                    : result + next;
  }
  return (op == ReduceOp::kAvg ? result * (1.0 / ranks) : result).to(dtype);
}

class CollectivesRanks : public testing::TestWithParam<int> {};

TEST_P(CollectivesRanks, AllReduceSumsInRankOrder) {
  const int ranks = GetParam();
  launch_threads(ranks, [&](Group group) {
    // 40,000 floats take two rounds, 7 take one; 40,001 do not divide by the ranks.
    for (const int64_t count : {0, 1, 7, 40000, 40001}) {
      at::Tensor tensor = numbers(group.rank(), count);
      all_reduce(group, tensor).wait();
      require(tensor.equal(reduced(ranks, count, at::kFloat, ReduceOp::kSum)),
              c10::str("wrong sum of ", count));
    }
  });
}

TEST_P(CollectivesRanks, ManyTensorsAreBroadcastInFewMessages) {
  const int ranks = GetParam();
  launch_threads(ranks, [&](Group group) {
    const auto make = [](int rank) {
      return std::vector<at::Tensor>{numbers(rank, 6).view({2, 3}).t(),
                                     numbers(rank, 3, at::kLong),
                                     at::Tensor(),
                                     numbers(rank, 100000),
                                     numbers(rank, 100002).view({2, 50001}).t(),
                                     numbers(rank, 1).squeeze(),
                                     numbers(rank, 0),
                                     numbers(rank, 5, at::kLong)};
    };
    const std::vector<at::Tensor> ours = make(group.rank());
    const std::vector<at::Tensor> expected = make(ranks - 1);
    const auto version = ours[0]._version();
    const auto before = group.traffic().collectives;
    broadcast_all(group, ours, ranks - 1, "many");
    // the small floats, the integers, and two large ones
    require(group.traffic().collectives - before == (ranks > 1 ? 4U : 0U), "not four messages");
    require(ours[0]._version() == version, "autograd was told of a change");
    for (size_t i = 0; i < ours.size(); ++i) {
      require(!ours[i].defined() || ours[i].equal(expected[i]),
              c10::str("tensor ", i, " is wrong"));
    }
  });
}

TEST_P(CollectivesRanks, ShiftBringsThePartOfTheRankAtADistance) {
  const int ranks = GetParam();
  launch_threads(ranks, [&](Group group) {
    for (int distance = 0; distance < ranks; ++distance) {
      for (const int64_t count : {1, 40001}) {
        const at::Tensor output = at::empty({count});
        shift(group, output, numbers(group.rank(), count), distance).wait();
        const int from = (group.rank() - distance + ranks) % ranks;
        require(output.equal(numbers(from, count)), c10::str("wrong shift by ", distance));
      }
    }
  });
}

TEST_P(CollectivesRanks, ReduceScatterGivesEachRankItsPart) {
  const int ranks = GetParam();
  launch_threads(ranks, [&](Group group) {
    const int64_t part = 1000;
    const at::Tensor input = numbers(group.rank(), part * ranks);
    const at::Tensor expected = reduced(ranks, part * ranks, at::kFloat, ReduceOp::kAvg)
                                    .slice(0, part * group.rank(), part * (group.rank() + 1));
    const at::Tensor output = at::empty({part});
    reduce_scatter(group, output, input, ReduceOp::kAvg).wait();
    require(output.equal(expected), "wrong part");
    require(input.equal(numbers(group.rank(), part * ranks)), "the input has changed");
    const at::Tensor own = input.slice(0, part * group.rank(), part * (group.rank() + 1));
    reduce_scatter(group, own, input, ReduceOp::kAvg).wait();
    require(own.equal(expected), "wrong part in place");
  });
}

TEST_P(CollectivesRanks, AllGatherPutsRanksOneAfterAnother) {
  const int ranks = GetParam();
  launch_threads(ranks, [&](Group group) {
    const at::Tensor input = numbers(group.rank(), 100).view({10, 10});
    const at::Tensor output = at::empty({ranks * 10, 10});
    all_gather(group, output, input).wait();
    const at::Tensor in_place = at::empty({ranks * 10, 10});
    const at::Tensor own = in_place.slice(0, group.rank() * 10, group.rank() * 10 + 10);
    own.copy_(input);
    all_gather(group, in_place, own).wait();
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor expected = numbers(rank, 100).view({10, 10});
      require(output.slice(0, rank * 10, rank * 10 + 10).equal(expected), "wrong part");
      require(in_place.slice(0, rank * 10, rank * 10 + 10).equal(expected), "wrong in place");
    }
  });
}

TEST_P(CollectivesRanks, BroadcastFromEveryRoot) {
  const int ranks = GetParam();
  launch_threads(ranks, [&](Group group) {
    for (int root = 0; root < ranks; root += 3) {
      at::Tensor tensor = numbers(group.rank(), 50);
      broadcast(group, tensor, root).wait();
      require(tensor.equal(numbers(root, 50)), c10::str("wrong from root ", root));
    }
    barrier(group);
  });
}

INSTANTIATE_TEST_SUITE_P(, CollectivesRanks, testing::Values(1, 2, 3, 8));

TEST(Collectives, SixtyFourRanks) {
  launch_threads(64, [](Group group) {
    at::Tensor tensor = at::full({128}, static_cast<double>(group.rank()), at::kFloat);
    all_reduce(group, tensor).wait();
    require(tensor.eq(64 * 63 / 2).all().item<bool>(), "wrong sum");
  });
}

TEST(Collectives, EveryDtypeAndReduction) {
  launch_threads(3, [](Group group) {
    using enum ReduceOp;
    for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong,
                             at::kByte, at::kChar, at::kShort}) {
      for (const auto op : {kSum, kAvg, kMin, kMax}) {
        if (op == kAvg && !at::isFloatingType(dtype)) {
          continue;
        }
        at::Tensor tensor = numbers(group.rank(), 99, dtype);
        all_reduce(group, tensor, op).wait();
        require(tensor.equal(reduced(3, 99, dtype, op)),
                c10::str("wrong ", dtype, " for reduction ", static_cast<int>(op)));
      }
    }
  });
}

TEST(Collectives, HalfPrecisionTravelsAndFullPrecisionSums) {
  launch_threads(3, [](Group group) {
    const at::Tensor input = numbers(group.rank(), 300, at::kBFloat16);
    const at::Tensor output = at::empty({100}, at::kFloat);
    const auto before = group.traffic().sent_bytes;
    reduce_scatter(group, output, input).wait();
    at::Tensor expected = at::zeros({300});
    for (int rank = 0; rank < 3; ++rank) {
      expected += numbers(rank, 300, at::kBFloat16).to(at::kFloat);
    }
    require(output.equal(expected.slice(0, group.rank() * 100, group.rank() * 100 + 100)), "wrong");
    require(group.traffic().sent_bytes - before == 2 * 100 * 2, "more than two bytes a number");
  });
}

TEST(Collectives, TwoRanksAgreeWithGlooBitForBit) {
  launch_threads(2, [](Group group) {
    at::Tensor ours = numbers(group.rank(), 100003);
    std::vector<at::Tensor> theirs{ours.clone()};
    all_reduce(group, ours).wait();
    group.process_group()->allreduce(theirs)->wait();
    require(ours.equal(theirs[0]), "differs from c10d's all-reduce");
  });
}

TEST(Collectives, ManyAtOnceFinishInAnyOrderOfWaiting) {
  launch_threads(4, [](Group group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 40; ++i) {
      tensors.push_back(numbers(group.rank() + i, 5000 * (i % 7) + 1));
      works.push_back(all_reduce(group, tensors.back(), ReduceOp::kSum, c10::str("tensor ", i)));
    }
    for (int i = 39; i >= 0; --i) {
      works[i].wait();
      works[i].wait();  // again is harmless
      at::Tensor expected = numbers(i, tensors[i].numel());
      for (int rank = 1; rank < 4; ++rank) {
        expected = expected + numbers(rank + i, tensors[i].numel());
      }
      require(tensors[i].equal(expected), c10::str("wrong tensor ", i));
    }
  });
}

TEST(Collectives, CallsInARowThatLookAlikeAreToldApart) {
  launch_threads(2, [](Group group) {
    for (int round = 0; round < 10; ++round) {
      std::vector<at::Tensor> tensors;
      std::vector<Work> works;
      for (int i = 0; i < 8; ++i) {  // large enough for two rounds of messages each
        tensors.push_back(numbers(group.rank(), 40000).add(i));
        works.push_back(all_reduce(group, tensors.back()));
      }
      for (int i = 0; i < 8; ++i) {
        works[i].wait();
        const at::Tensor expected = numbers(0, 40000).add(i) + numbers(1, 40000).add(i);
        require(tensors[i].equal(expected), c10::str("sum ", i, " is wrong"));
      }
    }
  });
}

TEST(Collectives, PartsMayBeUnequal) {
  launch_threads(3, [](Group group) {
    const Bounds bounds{0, 5, 5, 1000};
    const int64_t begin = bounds[group.rank()];
    const int64_t end = bounds[group.rank() + 1];
    const at::Tensor part = at::empty({end - begin});
    reduce_scatter(group, part, numbers(group.rank(), 1000), ReduceOp::kSum, "", bounds).wait();
    const at::Tensor sums = reduced(3, 1000, at::kFloat, ReduceOp::kSum);
    require(part.equal(sums.slice(0, begin, end)), "wrong part");
    const at::Tensor whole = at::empty({1000});
    all_gather(group, whole, part, "", bounds).wait();
    require(whole.equal(sums), "wrong whole");
  });
}

TEST(Collectives, LongPartsTravelInSegments) {
  launch_threads(3, [](Group group) {
    // More segments than are under way together, the last of them short, of parts of all lengths.
    constexpr int64_t kCount = 1200003;
    const Bounds bounds{0, 700000, 700001, kCount};
    const int64_t begin = bounds[group.rank()];
    const int64_t end = bounds[group.rank() + 1];
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor sums = reduced(3, kCount, dtype, ReduceOp::kSum);
      std::vector<at::Tensor> wholes;
      std::vector<at::Tensor> parts;
      std::vector<Work> works;
      for (int i = 0; i < 3; ++i) {
        wholes.push_back(numbers(group.rank(), kCount, dtype));
        parts.push_back(at::empty({end - begin}, dtype));
        works.push_back(
            reduce_scatter(group, parts[i], wholes[i].clone(), ReduceOp::kSum, "", bounds));
        works.push_back(all_reduce(group, wholes[i]));
      }
      for (int i = 0; i < 3; ++i) {
        works[2 * i].wait();
        require(parts[i].equal(sums.slice(0, begin, end)), c10::str("wrong part ", i));
        works[2 * i + 1].wait();
        require(wholes[i].equal(sums), c10::str("wrong whole ", i));
      }
    }
  });
}

TEST(Collectives, DroppedHandlesStillFinish) {
  launch_threads(2, [](Group group) {
    at::Tensor tensor = numbers(group.rank(), 100000);
    all_reduce(group, tensor);
    barrier(group);
    barrier(group);  // the second is behind the all-reduce's second round
    require(tensor.equal(reduced(2, 100000, at::kFloat, ReduceOp::kSum)), "not finished");
  });
}

TEST(Collectives, TrafficIsWhatTheBestAlgorithmSends) {
  launch_threads(4, [](Group group) {
    const auto sent = [&](const std::function<void()>& run) {
      const auto before = group.traffic().sent_bytes;
      run();
      return static_cast<int64_t>(group.traffic().sent_bytes - before);
    };
    const at::Tensor whole = at::ones({40000});
    const at::Tensor part = at::ones({10000});
    require(sent([&] { all_reduce(group, whole).wait(); }) == 2 * 3 * 40000, "all_reduce");
    require(sent([&] { reduce_scatter(group, part, whole).wait(); }) == 3 * 40000, "scatter");
    require(sent([&] { all_gather(group, whole, part).wait(); }) == 3 * 40000, "all_gather");
  });
}

TEST(Collectives, TimeIsCountedForThoseWhoWait) {
  launch_threads(2, [](Group group) {
    using Clock = std::chrono::steady_clock;
    constexpr auto kLate = std::chrono::milliseconds(100);
    barrier(group);
    const double before = waited_s(group);
    const auto start = Clock::now();
    while (group.rank() == 1 && Clock::now() - start < kLate) {
      // has other things to do
    }
    at::Tensor tensor = at::ones({10});
    all_reduce(group, tensor).wait();
    const double waited = waited_s(group) - before;
    const double late = std::chrono::duration<double>(kLate).count();
    require((waited > late / 2) == (group.rank() == 0),
            c10::str("rank ", group.rank(), " has waited for ", waited, " s"));
  });
}

TEST(Collectives, SubgroupsAreGroups) {
  launch_threads(4, [](Group group) {
    const Group odd = group.subgroup({1, 3});
    const Group even = group.subgroup({0, 2});
    const Group mine = group.rank() % 2 ? odd : even;
    require(mine.size() == 2 && mine.rank() == group.rank() / 2, "wrong place");
    at::Tensor tensor = at::full({3}, static_cast<double>(group.rank()), at::kFloat);
    all_reduce(mine, tensor).wait();
    require(tensor[0].item<float>() == (group.rank() % 2 ? 4 : 2), "wrong sum");
    require((group.rank() % 2 ? even : odd).rank() == -1, "should be outside");
  });
}

TEST(Collectives, GroupsLeaveNothingInTheStore) {
  launch_threads(3, [](Group group) {
    const auto keys_after_another = [&] {
      group.duplicate();
      group.subgroup({0, 2});
      barrier(group);
      const int64_t keys = group.process_group()->getStore()->getNumKeys();
      barrier(group);
      return keys;
    };
    const int64_t keys = keys_after_another();
    require(keys_after_another() == keys, "another group has left keys");
  });
}

}  // namespace collectives_test
}  // namespace fairshard::comm

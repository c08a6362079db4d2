// Nodes whose ranks partition the parameters train as nodes do whose ranks all have them.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/nn/slowmo.h>
#include <fairshard/optim/fused.h>

#include <gtest/gtest.h>

namespace fairshard {
namespace sharded_node_test {

using comm::Group;
using outer::BaseAlgorithm;
using outer::OuterOptimizerKind;
using outer::OuterOptions;
using test::Values;
using torch::nn::Sequential;
using torch::optim::SGDOptions;
using Parallel = SlowMoDistributedDataParallel<Sequential>;

const auto kSlowMo =
    OuterOptions().slow_frequency(4).average_frequency(2).momentum(0.6).smallest_piece_bytes(0);
const auto kStreaming = OuterOptions()
                            .optimizer(OuterOptimizerKind::kNesterov)
                            .slow_frequency(6)
                            .fragments(2)
                            .delay(2)
                            .local_weight(0.5)
                            .learning_rate(0.7)
                            .momentum(0.9);
const auto kGossip = OuterOptions(kSlowMo).base(BaseAlgorithm::kSgp).overlap_gossip(true);

const auto kOptions = SGDOptions(0.05).momentum(0.5);

const auto kEverything =
    OssOptions().overlap_gather(true).step_in_backward(true).release_parameters(true);

void train(Parallel& parallel, torch::optim::Optimizer& optimizer, int rank, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    parallel.zero_grad();
    test::loss_of(parallel.forward(test::input(rank, step))).backward();
    optimizer.step();
    parallel.perform_slowmo(optimizer);
  }
}

/// A node's share of a run: its model, wrapper and OSS.
struct Sharded {
  Sharded(const Group& group, const OuterOptions& outer, OssOptions options = {})
      : model(test::make_model(group.rank())),
        nodes(group, 2),
        oss(nodes.intra_node(), model, kOptions, options.bucket_bytes(2000)),
        parallel(group, model, nodes, oss, SlowMoOptions().outer(outer)) {}

  Values values() {
    oss.wait_for_parameters();
    return test::values_of(*model);
  }

  Sequential model;
  outer::Nodes nodes;
  OSS<SGD> oss;
  Parallel parallel;
};

TEST(ShardedNode, TrainsAsANodeWhoseRanksHaveAllParametersBitForBit) {
  for (const auto& outer : {kSlowMo, kStreaming, kGossip}) {
    for (const auto& options : {OssOptions(), OssOptions().step_in_backward(true), kEverything,
                                OssOptions().partition(shard::Partition::kTensor)}) {
      comm::launch_threads(4, [&](Group group) {
        auto model = test::make_model(group.rank());
        Parallel plain(group, model, 2, SlowMoOptions().outer(outer));
        SGD optimizer(model->parameters(), kOptions);
        train(plain, optimizer, group.rank(), 0, 13);
        Sharded sharded(group, outer, options);
        train(sharded.parallel, sharded.oss, group.rank(), 0, 13);
        test::require_same(sharded.values(), test::values_of(*model),
                           /*bit_for_bit=*/true);
        plain.average_parameters();
        sharded.parallel.average_parameters();
        test::require_same(sharded.values(), test::values_of(*model),
                           /*bit_for_bit=*/true);
      });
    }
  }
}

TEST(ShardedNode, NothingIsSentBetweenNodesUntilItIsDue) {
  comm::launch_threads(4, [](Group group) {
    Sharded sharded(group, OuterOptions(kSlowMo).average_frequency(3));
    const auto bytes = [&] { return sharded.parallel.report().inter_node_bytes; };
    const uint64_t before = bytes();
    train(sharded.parallel, sharded.oss, group.rank(), 0, 2);
    EXPECT_EQ(bytes(), before);
    train(sharded.parallel, sharded.oss, group.rank(), 2, 3);
    EXPECT_GT(bytes(), before);
  });
}

TEST(ShardedNode, AnOssOfOtherRanksIsRefused) {
  comm::launch_threads(4, [](Group group) {
    auto model = test::make_model(0);
    OSS<SGD> everywhere(group, model, kOptions);
    const outer::Nodes nodes(group, 2);
    test::expect_error([&] { Parallel(group, model, nodes, everywhere); },
                       {"across 4 ranks", "a node has 2", "never train apart"});
  });
}

TEST(ShardedNode, AnOssThatIsMadeLaterIsRefused) {
  comm::launch_threads(4, [](Group group) {
    auto model = test::make_model(0);
    Parallel parallel(group, model, 2);
    OSS<SGD> oss(group, model, kOptions);
    test::expect_error([&] { parallel.perform_slowmo(oss); }, {"is an OSS", "Make it before"});
    Sharded sharded(group, kSlowMo);
    SGD optimizer(model->parameters(), kOptions);
    test::expect_error([&] { sharded.parallel.perform_slowmo(optimizer); }, {"belong to an OSS"});
  });
}

}  // namespace sharded_node_test
}  // namespace fairshard

// A run saved on N ranks goes on with M as if it had never stopped.
#include "support/temporary_directory.h"
#include "support/training.h"
#include <fairshard/checkpoint.h>
#include <fairshard/optim/fused.h>
#include <fairshard/optim/schedule.h>
#include <fairshard/store/directory.h>

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace fairshard {
namespace elastic_test {

using comm::Group;
using comm::launch_threads;
using shard::Partition;
using torch::nn::Sequential;
using Losses = std::vector<float>;

constexpr int kBefore = 5;
constexpr int kAfter = 10;
constexpr int64_t kBatch = 24;  // whatever the number of ranks, they share it evenly

at::Tensor share_of_batch(const Group& group, int step) {
  const at::Tensor all =
      at::arange(kBatch * 10, at::kFloat).view({kBatch, 10}).mul(0.37).add(step * 0.9).sin();
  return all.chunk(group.size())[group.rank()];
}

/// The loss over all ranks.
float mean_over_ranks(const Group& group, const at::Tensor& loss) {
  const at::Tensor mean = loss.detach().to(at::kFloat).clone();
  comm::all_reduce(group, mean, comm::ReduceOp::kAvg).wait();
  return mean.item<float>();
}

template <typename Parallel, typename Optimizer>
Losses train(
    const Group& group, Parallel& parallel, Optimizer& optimizer, int first, int last,
    const std::function<void()>& after_step = [] {}) {
  Losses losses;
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    const auto dtype = parallel->parameters()[0].scalar_type();
    const auto loss = test::loss_of(parallel.forward(share_of_batch(group, step).to(dtype)));
    losses.push_back(mean_over_ranks(group, loss));
    loss.backward();
    optimizer.step();
    after_step();
  }
  return losses;
}

void expect_same(const Losses& ours, const Losses& theirs, bool bit_for_bit,
                 float tolerance = 1e-5) {
  ASSERT_EQ(ours.size(), theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    if (bit_for_bit) {
      EXPECT_EQ(ours[i], theirs[i]) << "step " << i;
    } else {
      EXPECT_NEAR(ours[i], theirs[i], tolerance * std::abs(theirs[i]) + tolerance) << "step " << i;
    }
  }
}

/// One way to train: saves after some steps and goes on, or loads and goes on.
struct Training {
  std::function<Losses(Group, const std::string& folder, bool is_resumed)> go;
};

template <typename Optimizer, typename Options>
Training sharded(Options options, OssOptions oss = test::kSmallBuckets,
                 at::ScalarType dtype = at::kFloat) {
  return {[=](Group group, const std::string& folder, bool is_resumed) {
    auto model = test::make_model(is_resumed ? 99 + group.rank() : 0);
    model->to(dtype);
    OSS<Optimizer> optimizer(group, *model, options, oss);
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    LearningRate rate(optimizer, warmup_schedule(8));
    Checkpoint checkpoint(group, folder);
    checkpoint.add("model", *model).add("optimizer", optimizer).add("rate", rate);
    if (is_resumed) {
      EXPECT_EQ(checkpoint.load()->step, kBefore);
    } else {
      train(group, parallel, optimizer, 0, kBefore, [&] { rate.step(); });
      checkpoint.save(kBefore);
    }
    return train(group, parallel, optimizer, kBefore, kBefore + kAfter, [&] { rate.step(); });
  }};
}

template <typename Optimizer, typename Options, typename... More>
Training replicated(Options options, at::ScalarType dtype = at::kFloat, More... more) {
  return {[=](Group group, const std::string& folder, bool is_resumed) {
    auto model = test::make_model(is_resumed ? 99 + group.rank() : 0);
    model->to(dtype);
    ShardedDataParallel<Sequential> parallel(group, model);
    Optimizer optimizer(model->parameters(), options, more...);
    LearningRate rate(optimizer, warmup_schedule(8));
    Checkpoint checkpoint(group, folder);
    checkpoint.add("model", *model).add("optimizer", optimizer).add("rate", rate);
    if (is_resumed) {
      EXPECT_EQ(checkpoint.load()->step, kBefore);
    } else {
      train(group, parallel, optimizer, 0, kBefore, [&] { rate.step(); });
      checkpoint.save(kBefore);
    }
    return train(group, parallel, optimizer, kBefore, kBefore + kAfter, [&] { rate.step(); });
  }};
}

Losses on_ranks(int ranks, const Training& run, const std::string& folder, bool is_resumed) {
  Losses losses;
  launch_threads(ranks, [&](Group group) {
    const Losses own = run.go(group, folder, is_resumed);
    if (group.rank() == 0) {
      losses = own;
    }
  });
  return losses;
}

/// Saves with one way of training and resumes with others.
void expect_continuity(int ranks, const Training& before, int resumed_ranks, const Training& after,
                       bool bit_for_bit, float tolerance = 1e-5) {
  const test::TemporaryDirectory directory;
  const Losses uninterrupted = on_ranks(ranks, before, directory.path(), false);
  expect_same(on_ranks(resumed_ranks, after, directory.path(), true), uninterrupted, bit_for_bit,
              tolerance);
}

const auto kAdamW = torch::optim::AdamWOptions(1e-2).weight_decay(0.1);

class ElasticRanks : public testing::TestWithParam<int> {};

TEST_P(ElasticRanks, AnyNumberOfRanksGoesOn) {
  const test::TemporaryDirectory directory;
  const Training run = sharded<AdamW>(kAdamW);
  const Losses uninterrupted = on_ranks(GetParam(), run, directory.path(), false);
  for (const int ranks : {1, 2, 3, 4, 8}) {
    expect_same(on_ranks(ranks, run, directory.path(), true), uninterrupted, ranks == GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(, ElasticRanks, testing::Values(1, 2, 3, 4, 8));

TEST(Elastic, EvenRangesBecomeWholeTensorsAndBack) {
  const Training even = sharded<AdamW>(kAdamW);
  const Training whole =
      sharded<AdamW>(kAdamW, OssOptions(test::kSmallBuckets).partition(Partition::kTensor));
  for (const auto& [ranks, resumed] : {std::pair(2, 2), std::pair(2, 3), std::pair(4, 1)}) {
    expect_continuity(ranks, even, resumed, whole, ranks == resumed);
    expect_continuity(ranks, whole, resumed, even, ranks == resumed);
  }
}

TEST(Elastic, ReplicatedBecomesShardedAndBack) {
  const Training oss = sharded<AdamW>(kAdamW);
  expect_continuity(2, replicated<AdamW>(kAdamW), 2, oss, true);
  expect_continuity(2, oss, 2, replicated<AdamW>(kAdamW), true);
  expect_continuity(3, replicated<AdamW>(kAdamW), 4, oss, false);
  expect_continuity(4, oss, 1, replicated<AdamW>(kAdamW), false);
}

TEST(Elastic, FusedOptimizersGoOnFromTorchsAndBack) {
  const auto adam = torch::optim::AdamOptions(1e-2).amsgrad(true);
  const auto sgd = torch::optim::SGDOptions(1e-2).momentum(0.9).nesterov(true);
  expect_continuity(2, sharded<torch::optim::AdamW>(kAdamW), 3, sharded<AdamW>(kAdamW), false);
  expect_continuity(2, sharded<AdamW>(kAdamW), 1, replicated<torch::optim::AdamW>(kAdamW), false);
  expect_continuity(2, sharded<torch::optim::Adam>(adam), 3, sharded<Adam>(adam), false);
  expect_continuity(2, sharded<Adam>(adam), 2, sharded<torch::optim::Adam>(adam), false);
  expect_continuity(2, sharded<torch::optim::SGD>(sgd), 3, sharded<SGD>(sgd), false);
  expect_continuity(3, sharded<SGD>(sgd), 2, replicated<torch::optim::SGD>(sgd), false);
  const auto rms = torch::optim::RMSpropOptions(1e-3).momentum(0.5).centered(true);
  expect_continuity(2, sharded<torch::optim::RMSprop>(rms), 3, sharded<torch::optim::RMSprop>(rms),
                    false);
  const auto adagrad = torch::optim::AdagradOptions(1e-2);
  expect_continuity(2, sharded<torch::optim::Adagrad>(adagrad), 2,
                    sharded<torch::optim::Adagrad>(adagrad), true);
}

TEST(Elastic, MasterWeightsAreSavedExactly) {
  const auto oss = OssOptions(test::kSmallBuckets).master_weights(true);
  const Training masters = sharded<AdamW>(kAdamW, oss, at::kBFloat16);
  const Training full = sharded<AdamW>(kAdamW);
  expect_continuity(2, masters, 2, masters, true);
  expect_continuity(2, masters, 3, masters, false, 2e-2);
  // A replicated optimizer keeps such copies of its own; its gradients are averaged in bfloat16.
  const Training own =
      replicated<AdamW>(kAdamW, at::kBFloat16, FusedOptions().master_weights(true));
  expect_continuity(2, own, 2, own, true);
  expect_continuity(2, own, 2, masters, false, 2e-2);
  expect_continuity(2, masters, 2, own, false, 2e-2);
  // From full precision to low and back: rounding of activations is all that differs.
  expect_continuity(2, full, 2, masters, false, 3e-2);
  expect_continuity(2, masters, 3, full, false, 3e-2);
}

TEST(Elastic, LowPrecisionOnTheWireGoesOnBitForBit) {
  const auto oss = OssOptions(test::kSmallBuckets).gather_dtype(at::kBFloat16);
  const Training rounded = sharded<AdamW>(kAdamW, oss);
  expect_continuity(2, rounded, 2, rounded, true);
  expect_continuity(2, rounded, 2,
                    sharded<AdamW>(kAdamW, OssOptions(oss).partition(Partition::kTensor)), true);
}

TEST(Elastic, OverlappedGathersAreWaitedFor) {
  const Training overlapped =
      sharded<AdamW>(kAdamW, OssOptions(test::kSmallBuckets).overlap_gather(true));
  expect_continuity(2, overlapped, 2, overlapped, true);
}

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(3, 8, 3));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    head = register_module("head", torch::nn::Linear(8, 4));
  }
  at::Tensor forward(const at::Tensor& x) {
    return head->forward(norm->forward(conv->forward(x)).mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(ConvNet);

/// Trains, saves, and gives the weight and its first moment, row-major.
std::vector<at::Tensor> conv_state(const Group& group, const std::string& folder, bool is_last,
                                   bool is_resumed) {
  ConvNet model;
  if (is_last) {
    auto& weight = model->conv->weight;
    weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  OSS<AdamW> optimizer(group, *model, kAdamW, test::kSmallBuckets);
  ShardedDataParallel<ConvNet> parallel(group, model, optimizer);
  Checkpoint checkpoint(group, folder);
  checkpoint.add("model", *model).add("optimizer", optimizer);
  if (is_resumed) {
    checkpoint.load();
    checkpoint.save(1);
  } else {
    test::loss_of(parallel.forward(at::ones({2, 3, 5, 5}) * (1 + group.rank()))).backward();
    optimizer.step();
    checkpoint.save(0);
  }
  store::Reader reader(*store::latest_checkpoint(folder));
  return {model->conv->weight.detach().contiguous(), reader.read("optimizer/conv.weight/exp_avg"),
          model->norm->running_mean.clone()};
}

TEST(Elastic, OtherOrdersOfMemoryGetTheRightElements) {
  for (const bool is_last : {false, true}) {
    const test::TemporaryDirectory directory;
    std::vector<at::Tensor> before;
    launch_threads(2, [&](Group group) {
      const auto state = conv_state(group, directory.path(), is_last, false);
      if (group.rank() == 0) {
        before = state;
      }
    });
    launch_threads(3, [&](Group group) {
      const auto after = conv_state(group, directory.path(), !is_last, true);
      for (size_t i = 0; i < before.size(); ++i) {
        EXPECT_TRUE(after[i].equal(before[i])) << i;
      }
    });
  }
}

}  // namespace elastic_test
}  // namespace fairshard

// OssOptions::release_parameters against plain training, and what has memory when.
#include "support/expect_error.h"
#include "support/training.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

namespace fairshard {
namespace release_parameters_test {

using comm::Group;
using test::expect_error;
using test::input;
using test::loss_of;
using test::make_model;
using test::require_same;
using test::run_ranks;
using test::train_plainly;
using test::train_sharded;
using test::values_of;
using torch::nn::Sequential;
using torch::optim::AdamWOptions;

const auto kReleased = OssOptions(test::kSmallBuckets).release_parameters(true);

class ReleaseParametersRanks : public testing::TestWithParam<int> {};

TEST_P(ReleaseParametersRanks, TrainsAsPlainDataParallelism) {
  run_ranks(GetParam(), [](Group group) {
    const bool bits = group.size() <= 2;
    const auto adamw = AdamWOptions(1e-2).weight_decay(0.1);
    const auto plain = train_plainly<torch::optim::AdamW>(group, adamw);
    for (const auto& oss : {kReleased, OssOptions(kReleased).step_in_backward(true),
                            OssOptions(kReleased).overlap_gather(true),
                            OssOptions(kReleased).overlap_gather(true).step_in_backward(true),
                            OssOptions(kReleased).partition(shard::Partition::kTensor),
                            OssOptions(kReleased).bucket_bytes(0).first_bucket_bytes(0),
                            OssOptions().release_parameters(true)}) {
      require_same(train_sharded<torch::optim::AdamW>(group, adamw, {}, oss), plain, bits);
    }
    const auto whole = DataParallelOptions().mode(DataParallelMode::kOptimizer);
    require_same(train_sharded<torch::optim::AdamW>(group, adamw, whole, kReleased), plain, bits);
  });
}

INSTANTIATE_TEST_SUITE_P(, ReleaseParametersRanks, testing::Values(1, 2, 3, 4));

TEST(ReleaseParameters, RoundedValuesComeBackAsTheyWere) {
  run_ranks(2, [](Group group) {
    const auto oss = OssOptions(test::kSmallBuckets).gather_dtype(at::kBFloat16);
    const auto plain = train_sharded<torch::optim::AdamW>(group, AdamWOptions(1e-2), {}, oss);
    for (const bool in_backward : {false, true}) {
      const auto with = OssOptions(oss).release_parameters(true).step_in_backward(in_backward);
      for (const bool in_forward : {false, true}) {
        require_same(
            train_sharded<torch::optim::AdamW>(group, AdamWOptions(1e-2), {},
                                               OssOptions(with).overlap_gather(in_forward)),
            plain, true);
      }
    }
  });
}

/// Bytes of parameters that have memory.
size_t resident_bytes(const shard::FlatGroup& group) {
  size_t bytes = 0;
  for (size_t b = 0; b < group.layout().buckets().size(); ++b) {
    bytes += group.bucket(b).flat().storage().nbytes();
  }
  return bytes;
}

TEST(ReleaseParameters, MemoryIsGoneBetweenForwardAndBackward) {
  run_ranks(2, [](Group group) {
    auto model = make_model();
    OSS<torch::optim::AdamW> optimizer(group, *model, AdamWOptions(1e-2), kReleased);
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    const auto forward = [&] { return loss_of(parallel.forward(input(group.rank(), 0))); };
    const auto train = [&] {
      forward().backward();
      optimizer.step();
    };
    train();  // finds the order of gradients
    const auto all = resident_bytes(*optimizer.flat_groups()[0]);
    at::Tensor loss = forward();
    TORCH_CHECK(resident_bytes(*optimizer.flat_groups()[0]) < all / 2, "parameters still have ",
                resident_bytes(*optimizer.flat_groups()[0]), " of ", all, " bytes");
    expect_error([&] { model->parameters().front().sum().item<float>(); },
                 {"has no values between", "'0.weight'"});
    loss.backward();
    TORCH_CHECK(resident_bytes(*optimizer.flat_groups()[0]) == all,
                "backward has not brought all back");
    optimizer.step();

    // A forward that nobody takes further is made good by the next.
    const auto before = values_of(*model);
    forward();
    {
      const at::NoGradGuard no_grad;
      forward();
    }
    TORCH_CHECK(resident_bytes(*optimizer.flat_groups()[0]) == all,
                "a forward without gradients has released some");
    require_same(values_of(*model), before, true);
    model->eval();
    forward();
    TORCH_CHECK(resident_bytes(*optimizer.flat_groups()[0]) == all,
                "an evaluation has released some");
    model->train();
    forward();
    optimizer.wait_for_parameters();
    require_same(values_of(*model), before, true);
    train();
  });
}

TEST(ReleaseParameters, MemoryIsGoneBetweenSteps) {
  run_ranks(2, [](Group group) {
    for (const bool in_backward : {false, true}) {
      auto model = make_model();
      OSS<torch::optim::AdamW> optimizer(
          group, *model, AdamWOptions(1e-2),
          OssOptions(kReleased).overlap_gather(true).step_in_backward(in_backward));
      ShardedDataParallel<Sequential> parallel(group, model, optimizer);
      const auto all = resident_bytes(*optimizer.flat_groups()[0]);
      for (int step = 0; step < 3; ++step) {
        loss_of(parallel.forward(input(group.rank(), step))).backward();
        optimizer.step();
        const auto left = resident_bytes(*optimizer.flat_groups()[0]);
        TORCH_CHECK(left < all / 2, "step ", step, " has left ", left, " of ", all, " bytes");
        expect_error([&] { model->parameters().front().sum().item<float>(); },
                     {"has no values", "between steps", "'0.weight'"});
      }
      optimizer.wait_for_parameters();
      model->parameters().front().sum().item<float>();
    }
  });
}

/// Its forward says itself where blocks begin and end. The first runs twice, and in some steps rank
/// 1 leaves one out.
struct ChainImpl : torch::nn::Module {
  ChainImpl() {
    for (int i = 0; i < 4; ++i) {
      blocks->push_back(torch::nn::Linear(10, 10));
    }
    register_module("blocks", blocks);
    scale = register_parameter("scale", torch::ones({10}));  // of no block, like the head's
    register_module("head", head);
    const at::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(3);  // ranks are threads and share torch's own
    for (const auto& parameter : parameters()) {
      parameter.uniform_(-0.3, 0.3, generator);
    }
    to(test::device());
  }
  at::Tensor forward(at::Tensor x, int left_out) {
    for (const int i : {0, 1, 2, 3, 0}) {
      if (i == left_out) {
        continue;
      }
      const auto block = blocks->ptr<torch::nn::LinearImpl>(i);
      if (parallel) {
        parallel->wait_for(*block);
      }
      const at::Tensor output = block->forward(x);
      if (parallel) {
        parallel->done_with(*block, output);
      }
      x = x + output.tanh() * scale;
    }
    return head->forward(x);
  }
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{10, 10};
  at::Tensor scale;
  DataParallelBase* parallel = nullptr;
};
TORCH_MODULE(Chain);

TEST(ReleaseParameters, BlocksMayRunTwiceOrOnSomeRanksOnly) {
  run_ranks(2, [](Group group) {
    const auto trained = [&](bool releases, bool in_backward, bool in_forward) {
      Chain model;
      const auto oss = OssOptions().bucket_bytes(100).first_bucket_bytes(100);
      OSS<torch::optim::AdamW> optimizer(group, *model, AdamWOptions(1e-2),
                                         OssOptions(oss)
                                             .release_parameters(releases)
                                             .step_in_backward(in_backward)
                                             .overlap_gather(in_forward));
      ShardedDataParallel<Chain> parallel(group, model, optimizer,
                                          DataParallelOptions().waits_by_block(true));
      model->parallel = &parallel;
      for (int step = 0; step < 8; ++step) {
        const int left_out = group.rank() == 1 && step % 2 == 1 ? 1 + step / 3 : -1;
        optimizer.zero_grad();
        {
          const auto no_sync = parallel.no_sync();
          loss_of(parallel.forward(input(group.rank(), 10 + step), left_out)).backward();
        }
        // The ranks' gradients come at different times: one waits for reductions while the other
        // needs values.
        loss_of(parallel.forward(input(group.rank(), step), left_out)).backward();
        optimizer.step();
      }
      optimizer.wait_for_parameters();
      return values_of(*model);
    };
    const auto plain = trained(false, false, false);
    for (const bool in_backward : {false, true}) {
      for (const bool in_forward : {false, true}) {
        require_same(trained(true, in_backward, in_forward), plain, true);
      }
    }
  });
}

TEST(ReleaseParameters, BlocksOfSeveralOptimizersMayRunOnSomeRanksOnly) {
  run_ranks(2, [](Group group) {
    const auto trained = [&](bool releases) {
      Chain model;
      std::vector<std::vector<at::Tensor>> parameters(2);
      for (const auto& parameter : model->parameters()) {
        parameters[parameter.dim() > 1 ? 0 : 1].push_back(parameter);
      }
      const auto oss = OssOptions()
                           .bucket_bytes(50)
                           .first_bucket_bytes(50)
                           .release_parameters(releases)
                           .step_in_backward(releases)
                           .overlap_gather(releases);
      OSS<torch::optim::AdamW> weights(group, parameters[0], AdamWOptions(1e-2), oss);
      OSS<torch::optim::AdamW> others(group, parameters[1], AdamWOptions(1e-2), oss);
      ShardedDataParallel<Chain> parallel(group, model, {weights, others},
                                          DataParallelOptions().waits_by_block(true));
      model->parallel = &parallel;
      for (int step = 0; step < 6; ++step) {
        const int left_out = step > 0 && group.rank() == step % 2 ? step % 3 + 1 : -1;
        parallel.zero_grad();
        loss_of(parallel.forward(input(group.rank(), step), left_out)).backward();
        weights.step();
        others.step();
      }
      weights.wait_for_parameters();
      others.wait_for_parameters();
      return values_of(*model);
    };
    require_same(trained(true), trained(false), true);
  });
}

TEST(ReleaseParameters, RefusesJoin) {
  run_ranks(2, [](Group group) {
    auto model = make_model();
    OSS<torch::optim::AdamW> optimizer(group, *model, AdamWOptions(1e-2), kReleased);
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    const auto in_join = [&] { parallel.join([&] { parallel.forward(input(group.rank(), 0)); }); };
    expect_error(in_join, {"release_parameters", "join()"});
  });
}

}  // namespace release_parameters_test
}  // namespace fairshard

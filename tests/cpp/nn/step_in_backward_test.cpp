// OssOptions::step_in_backward against plain training, and what it refuses.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/nn/checkpoint.h>
#include <fairshard/optim/fused.h>
#include <fairshard/optim/grad_scaler.h>

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

namespace fairshard {
namespace step_in_backward_test {

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
using torch::optim::SGDOptions;

const auto kInBackward = OssOptions(test::kSmallBuckets).step_in_backward(true);

class StepInBackwardRanks : public testing::TestWithParam<int> {};

TEST_P(StepInBackwardRanks, TrainsAsPlainDataParallelism) {
  run_ranks(GetParam(), [](Group group) {
    const bool bits = group.size() <= 2;
    const auto adamw = AdamWOptions(1e-2).weight_decay(0.1);
    const auto plain = train_plainly<torch::optim::AdamW>(group, adamw);
    require_same(train_sharded<torch::optim::AdamW>(group, adamw, {}, kInBackward), plain, bits);
    require_same(train_sharded<AdamW>(group, adamw, {}, kInBackward),
                 train_plainly<AdamW>(group, adamw), bits);
    for (const auto& oss : {OssOptions(kInBackward).partition(shard::Partition::kTensor),
                            OssOptions(kInBackward).overlap_gather(true),
                            OssOptions(kInBackward).bucket_bytes(0).first_bucket_bytes(0),
                            OssOptions().step_in_backward(true)}) {
      require_same(train_sharded<torch::optim::AdamW>(group, adamw, {}, oss), plain, bits);
    }
    for (const int in_flight : {1, 3}) {
      const auto options = DataParallelOptions().buckets_in_flight(in_flight);
      require_same(train_sharded<torch::optim::AdamW>(group, adamw, options, kInBackward), plain,
                   bits);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, StepInBackwardRanks, testing::Values(1, 2, 3, 4));

/// Rank 1 leaves one of the branches out in odd steps, all do in the last; so ranks start
/// buckets at different moments, and one is not stepped in the end.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (int i = 0; i < 4; ++i) {
      branches->push_back(torch::nn::Linear(10, 10));
    }
    register_module("branches", branches);
    const at::NoGradGuard no_grad;
    auto generator = at::detail::createCPUGenerator(3);  // ranks are threads and share torch's own
    for (const auto& parameter : parameters()) {
      parameter.uniform_(-0.3, 0.3, generator);
    }
    to(test::device());
  }
  at::Tensor forward(const at::Tensor& x, int left_out) {
    at::Tensor sum = x;
    for (size_t i = 0; i < branches->size(); ++i) {
      if (static_cast<int>(i) != left_out) {
        const auto branch = branches->ptr<torch::nn::LinearImpl>(i);
        const auto run = [branch](const at::Tensor& y) { return branch->forward(y).tanh(); };
        sum = sum + (runs_again ? checkpoint(run, sum) : run(sum));
      }
    }
    return sum;
  }
  torch::nn::ModuleList branches;
  bool runs_again = false;
};
TORCH_MODULE(Branches);

TEST(StepInBackward, RanksMayUseDifferentParameters) {
  run_ranks(2, [](Group group) {
    const auto trained = [&](bool in_backward) {
      Branches model;
      const auto oss = OssOptions().bucket_bytes(100).first_bucket_bytes(100);
      OSS<torch::optim::AdamW> optimizer(group, *model, AdamWOptions(1e-2).weight_decay(0.1),
                                         OssOptions(oss).step_in_backward(in_backward));
      ShardedDataParallel<Branches> parallel(group, model, optimizer);
      for (int step = 0; step < 8; ++step) {
        const int left_out = step == 7 ? 2 : group.rank() == 1 && step % 2 == 1 ? step / 2 : -1;
        optimizer.zero_grad();
        loss_of(parallel.forward(input(group.rank(), step), left_out)).backward();
        optimizer.step();
      }
      return values_of(*model);
    };
    require_same(trained(true), trained(false), true);
  });
}

TEST(StepInBackward, GradientsAddUpWithinNoSync) {
  run_ranks(2, [](Group group) {
    const auto trained = [&](bool in_backward) {
      auto model = make_model();
      OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1).momentum(0.9),
                                       OssOptions(kInBackward).step_in_backward(in_backward));
      ShardedDataParallel<Sequential> parallel(group, model, optimizer);
      for (int step = 0; step < 5; ++step) {
        {
          const auto no_sync = parallel.no_sync();
          loss_of(parallel.forward(input(group.rank(), 10 + step))).backward();
        }
        loss_of(parallel.forward(input(group.rank(), step))).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      return values_of(*model);
    };
    require_same(trained(true), trained(false), true);
  });
}

TEST(StepInBackward, ExactCopiesAreSteppedAndRoundedValuesGathered) {
  run_ranks(2, [](Group group) {
    const auto oss = OssOptions(test::kSmallBuckets).gather_dtype(at::kBFloat16);
    const auto options = AdamWOptions(1e-2);
    require_same(train_sharded<AdamW>(group, options, {}, OssOptions(oss).step_in_backward(true)),
                 train_sharded<AdamW>(group, options, {}, oss), true);
  });
}

TEST(StepInBackward, NoGradientIsLeftAndStepHasNothingToSend) {
  run_ranks(2, [](Group group) {
    auto model = make_model();
    OSS<AdamW> optimizer(group, *model, AdamWOptions(1e-2), kInBackward);
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    loss_of(parallel.forward(input(group.rank(), 0))).backward();
    optimizer.step();
    loss_of(parallel.forward(input(group.rank(), 1))).backward();
    TORCH_CHECK(optimizer.flat_groups()[0]->gradients().memory().empty(), "gradients are left");
    const auto before = group.traffic().sent_bytes;
    optimizer.step();
    TORCH_CHECK(group.traffic().sent_bytes == before, "step() has sent something");
  });
}

TEST(StepInBackward, RefusesWhatNeedsAllGradients) {
  run_ranks(2, [](Group group) {
    auto model = make_model();
    OSS<AdamW> optimizer(group, *model, AdamWOptions(1e-2), kInBackward);
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    const auto backward = [&] { loss_of(parallel.forward(input(group.rank(), 0))).backward(); };
    backward();
    expect_error([&] { optimizer.clip_grad_norm(1.0); }, {"clipped", "step_in_backward"});
    optimizer.step();
    backward();
    expect_error(backward, {"step_in_backward", "step()", "no_sync"});
    optimizer.step();
    ShardedGradScaler scaler(group);
    expect_error([&] { scaler.scale(loss_of(parallel.forward(input(0, 0)))).backward(); },
                 {"step_in_backward", "grad scaler"});
    expect_error(
        [&] {
          ShardedDataParallel<Sequential> other(
              group, model, optimizer, DataParallelOptions().mode(DataParallelMode::kOptimizer));
        },
        {"step_in_backward", "'gradients'"});
  });
}

/// Uses its weight once as a parameter and once, earlier, as a number that backward needs later.
struct DetachedImpl : torch::nn::Module {
  DetachedImpl() {
    first = register_module("first", torch::nn::Linear(10, 10));
    second = register_module("second", torch::nn::Linear(10, 10));
    weight = register_parameter("weight", torch::ones({10}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return second->forward(first->forward(x) * weight.detach()) * weight;
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor weight;
};
TORCH_MODULE(Detached);

TEST(StepInBackward, ValuesThatBackwardStillNeedsAreNotChangedUnnoticed) {
  run_ranks(1, [](Group group) {
    Detached model;
    model->to(test::device());
    OSS<SGD> optimizer(group, *model, SGDOptions(0.1),
                       OssOptions(kInBackward).bucket_bytes(0).first_bucket_bytes(0));
    ShardedDataParallel<Detached> parallel(group, model, optimizer,
                                           DataParallelOptions().buckets_in_flight(1));
    const auto backward = [&] { loss_of(parallel.forward(input(0, 0))).backward(); };
    backward();
    optimizer.step();
    expect_error(backward, {"modified by an inplace operation"});
  });
}

TEST(StepInBackward, BlocksThatRunAgainUseTheOldValues) {
  run_ranks(2, [](Group group) {
    const auto trained = [&](bool in_backward) {
      Branches model;
      model->runs_again = in_backward;
      OSS<AdamW> optimizer(
          group, *model, AdamWOptions(1e-2),
          OssOptions().bucket_bytes(100).first_bucket_bytes(100).step_in_backward(in_backward));
      ShardedDataParallel<Branches> parallel(group, model, optimizer);
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        loss_of(parallel.forward(input(0, step), -1)).backward();
        optimizer.step();
      }
      return values_of(*model);
    };
    require_same(trained(true), trained(false), true);
  });
}

}  // namespace step_in_backward_test
}  // namespace fairshard

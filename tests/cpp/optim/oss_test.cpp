// What an OSS is beside its ShardedDataParallel: how long it lives, and what archives get of it.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/optim/adascale.h>

#include <gtest/gtest.h>

#include <memory>
#include <sstream>

namespace fairshard {
namespace oss_test {

using comm::Group;
using comm::launch_threads;
using test::expect_error;
using test::input;
using test::loss_of;
using test::make_model;
using torch::nn::Sequential;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

TEST(Oss, ArchivesOfOneRankAreRefused) {
  launch_threads(2, [](Group group) {
    auto model = make_model();
    OSS<AdamW> optimizer(group, model, AdamWOptions(1e-2));
    std::stringstream stream;
    expect_error([&] { torch::save(optimizer, stream); }, {"torch::save", "fairshard::Checkpoint"});
    // also by what knows it as an optimizer of torch's alone
    torch::optim::Optimizer& plain = optimizer;
    torch::serialize::OutputArchive archive;
    expect_error([&] { plain.save(archive); }, {"partitioned across ranks"});
    AdamW other(model->parameters(), AdamWOptions(1e-2));
    std::stringstream others;
    torch::save(other, others);
    expect_error([&] { torch::load(optimizer, others); }, {"torch::load", "fairshard::Checkpoint"});
  });
}

/// A model goes on without the OSS that it was wrapped with, as if it had never been.
TEST(Oss, MayEndBeforeItsShardedDataParallel) {
  launch_threads(2, [](Group group) {
    const auto expected = test::train_plainly<torch::optim::SGD>(group, SGDOptions(0.1), 3);
    for (const bool overlaps : {false, true}) {
      auto model = make_model();
      const auto options = OssOptions().bucket_bytes(2000).overlap_gather(overlaps);
      auto optimizer = std::make_unique<OSS<SGD>>(group, model, SGDOptions(0.1), options);
      ShardedDataParallel parallel(group, model, *optimizer);
      for (int step = 0; step < 2; ++step) {
        optimizer->zero_grad();
        loss_of(parallel.forward(input(group.rank(), step))).backward();
        optimizer->step();
      }
      optimizer.reset();  // while parameters are on their way
      SGD plain(model->parameters(), SGDOptions(0.1));
      plain.zero_grad();
      loss_of(parallel.forward(input(group.rank(), 2))).backward();
      plain.step();
      test::require_same(test::values_of(*model), expected, true);
    }
  });
}

/// The last thing that a rank does is a step whose gather others still need.
TEST(Oss, ARankMayLeaveRightAfterAnOverlappedGather) {
  std::vector<at::Tensor> found(2);
  launch_threads(2, [&](Group group) {
    torch::manual_seed(0);
    Sequential model(torch::nn::Linear(1500, 1500));
    auto optimizer = std::make_unique<OSS<SGD>>(
        group, model, SGDOptions(0.1), OssOptions().bucket_bytes(1 << 20).overlap_gather(true));
    auto parallel = std::make_unique<ShardedDataParallel<Sequential>>(group, model, *optimizer);
    loss_of(parallel->forward(at::ones({2, 1500}))).backward();
    optimizer->step();
    if (group.rank() == 1) {
      optimizer->wait_for_parameters();
      found[1] = model->parameters()[0].detach().clone();
    }
  });
  ASSERT_TRUE(found[1].defined());
  EXPECT_TRUE(found[1].isfinite().all().item<bool>());
}

TEST(Oss, ModulesAreTakenHoweverTheyAreHeld) {
  launch_threads(2, [](Group group) {
    const at::Tensor x = input(group.rank(), 0);
    const auto train = [&](auto&& oss_of, auto&& wrap) {
      auto model = make_model();
      auto optimizer = oss_of(model);
      auto parallel = wrap(model, *optimizer);
      loss_of(parallel->forward(x)).backward();
      optimizer->step();
      return test::values_of(*model);
    };
    using Oss = OSS<torch::optim::SGD>;
    const auto by_holder = train(
        [&](Sequential& model) { return std::make_unique<Oss>(group, model, SGDOptions(0.1)); },
        [&](Sequential& model, OssBase& optimizer) {
          ShardedDataParallel parallel(group, model, optimizer);
          static_assert(std::is_same_v<decltype(parallel), ShardedDataParallel<Sequential>>);
          return std::make_unique<decltype(parallel)>(group, model, optimizer);
        });
    const auto by_reference = train(
        [&](Sequential& model) { return std::make_unique<Oss>(group, *model, SGDOptions(0.1)); },
        [&](Sequential& model, OssBase& optimizer) {
          ShardedDataParallel parallel(group, *model, optimizer, DataParallelOptions());
          TORCH_CHECK(parallel.module() == model.ptr());
          return std::make_unique<decltype(parallel)>(group, *model, optimizer);
        });
    const auto by_pointer = train(
        [&](Sequential& model) {
          return std::make_unique<Oss>(group, model.ptr(), SGDOptions(0.1));
        },
        [&](Sequential& model, OssBase& optimizer) {
          ShardedDataParallel parallel(group, model.ptr(), {std::ref(optimizer)});
          return std::make_unique<decltype(parallel)>(group, model.ptr(), optimizer);
        });
    test::require_same(by_reference, by_holder, true);
    test::require_same(by_pointer, by_holder, true);
    auto replicated = make_model();
    TORCH_CHECK(ShardedDataParallel(group, *replicated).forward(x).defined());
  });
}

// One line of the compiler for what is no module, no optimizer, or no options.
template <typename Module, typename Options>
concept OssTakes = std::is_constructible_v<OSS<SGD>, Group, Module, Options>;
static_assert(OssTakes<Sequential&, SGDOptions> && OssTakes<torch::nn::LinearImpl&, SGDOptions>);
static_assert(OssTakes<std::shared_ptr<torch::nn::LinearImpl>, SGDOptions>);
static_assert(!OssTakes<int, SGDOptions> && !OssTakes<Sequential&, int>);
static_assert(!AnyModule<at::Tensor> && !AnyModule<std::vector<at::Tensor>>);

}  // namespace oss_test
}  // namespace fairshard

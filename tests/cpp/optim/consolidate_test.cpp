// An OSS's state as a plain optimizer's, and back.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/optim/consolidate.h>
#include <fairshard/optim/fused.h>

#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <sstream>

namespace fairshard {
namespace consolidate_test {

using comm::Group;
using comm::launch_threads;
using test::input;
using test::loss_of;
using test::make_model;
using test::values_of;
using torch::nn::Sequential;

/// Trains on data that all ranks have alike, so that a plain optimizer can go on alone.
template <typename Forward>
void train(Forward&& forward, torch::optim::Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    optimizer.zero_grad();
    loss_of(forward(input(0, step))).backward();
    optimizer.step();
  }
}

template <typename Sharded, typename Plain, typename Options>
void expect_both_ways(int ranks, const Options& options, const OssOptions& oss_options) {
  launch_threads(ranks, [&](Group group) {
    auto model = make_model();
    OSS<Sharded> optimizer(group, model, options, oss_options);
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    const auto forward = [&](const at::Tensor& x) { return parallel.forward(x); };
    train(forward, optimizer, 0, 4);
    optimizer.param_groups()[0].options().set_lr(0.03);

    auto plain_model = make_model();
    Plain plain(plain_model->parameters(), options);
    consolidate_state(optimizer, plain, /*root=*/ranks - 1);
    TORCH_CHECK(plain.param_groups()[0].options().get_lr() == 0.03, "options were not taken");
    // From root to all, as an archive.
    std::stringstream archive;
    if (group.rank() == ranks - 1) {
      torch::save(plain, archive);
    } else {
      TORCH_CHECK(plain.state().empty(), "only root has the state");
    }
    std::string text = archive.str();
    at::Tensor length = at::tensor(static_cast<int64_t>(text.size()));
    comm::broadcast(group, length, ranks - 1).wait();
    text.resize(static_cast<size_t>(length.item<int64_t>()));
    const at::Tensor bytes = at::from_blob(text.data(), {length.item<int64_t>()}, at::kByte);
    comm::broadcast(group, bytes, ranks - 1).wait();
    std::stringstream arrived(text);
    torch::load(plain, arrived);
    for (size_t i = 0; i < plain_model->parameters().size(); ++i) {
      plain_model->parameters()[i].set_data(model->parameters()[i].detach().clone());
    }

    auto back_model = make_model(9);
    OSS<Sharded> back(group, back_model, options, oss_options);
    ShardedDataParallel<Sequential> back_parallel(group, back_model, back);
    load_state(back, plain);
    {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < back_model->parameters().size(); ++i) {
        back_model->parameters()[i].copy_(model->parameters()[i]);
      }
    }
    train(forward, optimizer, 4, 8);
    train([&](const at::Tensor& x) { return plain_model->forward(x); }, plain, 4, 8);
    train([&](const at::Tensor& x) { return back_parallel.forward(x); }, back, 4, 8);
    test::require_same(values_of(*back_model), values_of(*model), true);
    test::require_same(values_of(*plain_model), values_of(*model), false);
  });
}

TEST(Consolidate, StatesGoToAPlainOptimizerAndBack) {
  using torch::optim::AdamWOptions;
  expect_both_ways<torch::optim::AdamW, torch::optim::AdamW>(3, AdamWOptions(0.1).amsgrad(true),
                                                             test::kSmallBuckets);
  expect_both_ways<torch::optim::SGD, torch::optim::SGD>(
      2, torch::optim::SGDOptions(0.1).momentum(0.9), test::kSmallBuckets);
  expect_both_ways<torch::optim::RMSprop, torch::optim::RMSprop>(
      2, torch::optim::RMSpropOptions(0.01).centered(true),
      OssOptions().partition(shard::Partition::kTensor));
  expect_both_ways<AdamW, torch::optim::AdamW>(2, AdamWOptions(0.1), test::kSmallBuckets);
}

TEST(Consolidate, WhatDoesNotFitIsNamed) {
  launch_threads(2, [](Group group) {
    auto model = make_model();
    OSS<AdamW> optimizer(group, model, torch::optim::AdamWOptions(0.1));
    auto parameters = model->parameters();
    parameters.pop_back();
    AdamW fewer(parameters, torch::optim::AdamWOptions(0.1));
    test::expect_error([&] { consolidate_state(optimizer, fewer); },
                       {"group 0 of the OSS has", "parameter(s)"});
    AdamW whole(model->parameters(), torch::optim::AdamWOptions(0.1));
    test::expect_error([&] { consolidate_state(optimizer, whole, 2); }, {"root is 2"});
    auto narrow = make_model();
    narrow->to(at::kBFloat16);
    OSS<AdamW> exact(group, narrow, torch::optim::AdamWOptions(0.1),
                     OssOptions().master_weights(true));
    AdamW plain(narrow->parameters(), torch::optim::AdamWOptions(0.1));
    test::expect_error([&] { consolidate_state(exact, plain); }, {"master weights", "Checkpoint"});
  });
}

}  // namespace consolidate_test
}  // namespace fairshard

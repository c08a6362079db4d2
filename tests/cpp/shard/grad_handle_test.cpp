// What torch's own functions do to the gradients of sharded parameters, against plain twins.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/shard/grad_handle.h>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

namespace fairshard {
namespace grad_handle_test {

using comm::Group;
using comm::launch_threads;
using test::input;
using test::loss_of;
using test::make_model;
using test::require_same;
using test::values_of;
using torch::nn::Sequential;
using torch::optim::SGDOptions;

/// A sharded model, and one that has the mean gradients of all ranks by itself.
struct Twins {
  explicit Twins(Group group, const SGDOptions& options = SGDOptions(0.1).momentum(0.9))
      : ranks(group),
        optimizer(group, *model, options, test::kSmallBuckets),
        parallel(group, model, optimizer),
        plain(twin->parameters(), options) {}

  void backward(int step) {
    loss_of(parallel.forward(input(ranks.rank(), step))).backward();
    at::Tensor mean = at::zeros({});
    for (int rank = 0; rank < ranks.size(); ++rank) {
      mean = mean + loss_of(twin->forward(input(rank, step))) / ranks.size();
    }
    mean.backward();
  }
  void step() {
    optimizer.step();
    plain.step();
  }
  void check() { require_same(values_of(*model), values_of(*twin), /*bit_for_bit=*/false); }

  Group ranks;
  Sequential model = make_model();
  Sequential twin = make_model();
  OSS<torch::optim::SGD> optimizer;
  ShardedDataParallel<Sequential> parallel;
  torch::optim::SGD plain;
};

TEST(GradHandle, TorchsNormIsThatOfTheWholeGradientAndClipsIt) {
  launch_threads(3, [](Group group) {
    for (const double norm_type : {2.0, 1.0}) {
      Twins twins(group);
      for (int step = 0; step < 3; ++step) {
        twins.optimizer.zero_grad();
        twins.plain.zero_grad();
        twins.backward(step);
        const double ours =
            torch::nn::utils::clip_grad_norm_(twins.model->parameters(), 0.01, norm_type);
        const double theirs =
            torch::nn::utils::clip_grad_norm_(twins.twin->parameters(), 0.01, norm_type);
        EXPECT_NEAR(ours, theirs, 1e-5 * theirs);
        twins.step();
      }
      twins.check();
    }
  });
}

TEST(GradHandle, TorchsClippingByValueClips) {
  launch_threads(2, [](Group group) {
    Twins twins(group);
    twins.backward(0);
    torch::nn::utils::clip_grad_value_(twins.model->parameters(), 0.001);
    torch::nn::utils::clip_grad_value_(twins.twin->parameters(), 0.001);
    twins.step();
    twins.check();
  });
}

TEST(GradHandle, GradientsAreDroppedByWhoeverDropsThem) {
  const std::vector<std::function<void(Twins&)>> ways = {
      [](Twins& twins) { twins.model->zero_grad(); },
      [](Twins& twins) { static_cast<torch::optim::Optimizer&>(twins.optimizer).zero_grad(); },
      [](Twins& twins) { twins.parallel.zero_grad(); },
      [](Twins& twins) {
        for (const at::Tensor& parameter : twins.model->parameters()) {
          parameter.mutable_grad().reset();
        }
      },
  };
  launch_threads(2, [&](Group group) {
    for (const auto& drop : ways) {
      Twins twins(group);
      for (int step = 0; step < 3; ++step) {
        twins.backward(2 * step);  // a batch that is left out after all
        drop(twins);
        twins.plain.zero_grad();
        twins.backward(2 * step + 1);
        twins.step();
        drop(twins);
        twins.plain.zero_grad();
      }
      twins.check();
    }
  });
}

TEST(GradHandle, OneGradientOfABucketMayBeDropped) {
  launch_threads(2, [](Group group) {
    Twins twins(group);
    for (int step = 0; step < 3; ++step) {
      twins.backward(2 * step);
      twins.model->parameters()[1].mutable_grad().reset();
      twins.twin->parameters()[1].mutable_grad().reset();
      twins.backward(2 * step + 1);  // adds to all others
      twins.step();
    }
    twins.check();
  });
}

TEST(GradHandle, GradientsOfZeroAreStepped) {
  launch_threads(2, [](Group group) {
    Twins twins(group);
    twins.backward(0);
    for (int step = 0; step < 2; ++step) {
      twins.step();
      twins.optimizer.zero_grad(/*set_to_none=*/false);
      twins.plain.zero_grad(/*set_to_none=*/false);
    }
    twins.check();
  });
}

TEST(GradHandle, WhatNeedsAllOfAGradientIsRefused) {
  launch_threads(2, [](Group group) {
    Twins twins(group);
    twins.backward(0);
    const at::Tensor gradient = twins.model->parameters()[0].grad();
    EXPECT_TRUE(shard::is_grad_handle(gradient));
    EXPECT_FALSE(shard::whole_grad(twins.model->parameters()[0]).defined());
    EXPECT_EQ(gradient.sizes(), twins.model->parameters()[0].sizes());
    test::expect_error([&] { gradient.clone(); }, {"'0.weight' is sharded", "aten::clone"});
    torch::optim::SGD other(twins.model->parameters(), SGDOptions(0.1));
    test::expect_error([&] { other.step(); }, {"Let the OSS that has the parameter step it"});
  });
}

TEST(GradHandle, EndsWithTheGradientsThatItLeadsTo) {
  launch_threads(2, [](Group group) {
    auto model = make_model();
    {
      OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1));
      ShardedDataParallel<Sequential> parallel(group, model, optimizer);
      loss_of(parallel.forward(input(group.rank(), 0))).backward();
    }
    for (const at::Tensor& parameter : model->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
  });
}

}  // namespace grad_handle_test
}  // namespace fairshard

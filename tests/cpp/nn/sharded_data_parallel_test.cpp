// What ShardedDataParallel and OSS do in a user's hands, against plain twins.
#include "support/expect_error.h"
#include "support/training.h"

#include <gtest/gtest.h>

#include <mutex>

namespace fairshard {
namespace sharded_data_parallel_test {

using comm::Group;
using comm::launch_threads;
using torch::nn::Sequential;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using Mode = DataParallelMode;
using test::input;
using test::kSmallBuckets;
using test::loss_of;
using test::make_model;
using test::require_same;
using test::train_plainly;
using test::Values;
using test::values_of;

TEST(ShardedDataParallel, StateAndGradientsAreShared) {
  launch_threads(4, [](Group group) {
    auto model = make_model();
    OSS<torch::optim::AdamW> optimizer(group, *model, AdamWOptions(1e-2));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    loss_of(parallel.forward(input(group.rank(), 0))).backward();
    for (const auto& parameter : model->parameters()) {
      TORCH_CHECK(!shard::whole_grad(parameter).defined(), "a whole gradient is left");
    }
    optimizer.step();
    int64_t state = 0;
    for (const auto& slice : optimizer.flat_groups()[0]->slices()) {
      state += slice.values.numel();
    }
    int64_t all = 0;
    for (const auto& parameter : model->parameters()) {
      all += parameter.numel();
    }
    TORCH_CHECK(state <= all / 4 + 32, "rank has ", state, " of ", all);
  });
}

TEST(ShardedDataParallel, TrafficIsTwiceTheParametersTimesTheRatio) {
  launch_threads(2, [](Group group) {
    Sequential model(torch::nn::Linear(500, 400));
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(1e-2));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    const auto before = group.traffic().sent_bytes;
    loss_of(parallel.forward(at::ones({2, 500}))).backward();
    optimizer.step();
    const auto sent = static_cast<double>(group.traffic().sent_bytes - before);
    const double ideal = 2 * (500 * 400 + 400) * 4 * 0.5;
    TORCH_CHECK(sent <= 1.02 * ideal, "sent ", sent, " of ", ideal);
  });
}

TEST(ShardedDataParallel, AccumulationWithAndWithoutReductionGivesTheSameSum) {
  launch_threads(2, [](Group group) {
    enum Way { kReduceEach, kGuard, kSwitch };
    Values results[3];
    for (const Way way : {kReduceEach, kGuard, kSwitch}) {
      auto model = make_model();
      OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1), kSmallBuckets);
      ShardedDataParallel<Sequential> parallel(group, model, optimizer);
      for (int step = 0; step < 3; ++step) {
        for (int micro = 0; micro < 3; ++micro) {
          const auto backward = [&] {
            loss_of(parallel.forward(input(group.rank(), 10 * step + micro))).backward();
          };
          const auto sent = group.traffic().sent_bytes;
          parallel.set_requires_gradient_sync(way != kSwitch || micro == 2);
          if (way == kGuard && micro < 2) {
            const auto guard = parallel.no_sync();
            backward();
          } else {
            backward();
          }
          const bool is_quiet = way != kReduceEach && micro < 2;
          TORCH_CHECK((group.traffic().sent_bytes == sent) == is_quiet, "way ", way);
        }
        optimizer.step();
        optimizer.zero_grad();
      }
      results[way] = values_of(*model);
    }
    require_same(results[kReduceEach], results[kGuard], false);
    require_same(results[kSwitch], results[kGuard], true);
  });
}

TEST(ShardedDataParallel, AnyKindOfZeroGradTrainsRight) {
  launch_threads(2, [](Group group) {
    const Values plain = train_plainly<torch::optim::SGD>(group, SGDOptions(0.1), 4);
    for (int kind = 0; kind < 5; ++kind) {
      auto model = make_model();
      OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1), kSmallBuckets);
      ShardedDataParallel<Sequential> parallel(group, model, optimizer);
      for (int step = 0; step < 4; ++step) {
        switch (kind) {
          case 0:
            optimizer.zero_grad(true);
            break;
          case 1:
            optimizer.zero_grad(false);
            break;
          case 2:
            parallel.zero_grad(true);
            break;
          case 3:
            parallel.zero_grad(false);
            break;
          case 4:
            model->zero_grad();
            break;
        }
        loss_of(parallel.forward(input(group.rank(), step))).backward();
        optimizer.step();
      }
      require_same(values_of(*model), plain, true);
    }
  });
}

/// Two branches, of which a forward uses one, both or none of the second.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    trunk = register_module("trunk", torch::nn::Linear(10, 10));
    left = register_module("left", torch::nn::Linear(10, 5));
    right = register_module("right", torch::nn::Linear(10, 5));
  }
  at::Tensor forward(const at::Tensor& x, bool use_left, bool use_right) {
    at::Tensor y = trunk->forward(x);
    at::Tensor sum = y.sum() * 0.01;
    if (use_left) sum = sum + left->forward(y).pow(2).mean();
    if (use_right) sum = sum + right->forward(y).pow(2).mean();
    return sum;
  }
  torch::nn::Linear trunk{nullptr}, left{nullptr}, right{nullptr};
};
TORCH_MODULE(Branches);

Branches make_branches() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(1);
  return Branches();
}

TEST(ShardedDataParallel, UnusedParametersAreLeftAloneOrAveragedWithZeros) {
  launch_threads(2, [](Group group) {
    auto model = make_branches();
    auto twin = make_branches();
    OSS<torch::optim::AdamW> optimizer(group, *model, AdamWOptions(0.1).weight_decay(0.5),
                                       kSmallBuckets);
    torch::optim::AdamW twin_optimizer(twin->parameters(), AdamWOptions(0.1).weight_decay(0.5));
    ShardedDataParallel<Branches> parallel(group, model, optimizer);
    for (int step = 0; step < 4; ++step) {
      // Rank 0 uses the left branch in even steps; nobody uses the right one before step 2.
      const auto uses_left = [&](int rank) { return rank == 0 && step % 2 == 0; };
      const auto uses_right = [&](int rank) { return rank == 1 && step >= 2; };
      optimizer.zero_grad();
      parallel.forward(input(group.rank(), step), uses_left(group.rank()), uses_right(group.rank()))
          .backward();
      optimizer.step();
      twin_optimizer.zero_grad();
      ((twin->forward(input(0, step), uses_left(0), uses_right(0)) +
        twin->forward(input(1, step), uses_left(1), uses_right(1))) /
       2)
          .backward();
      twin_optimizer.step();
    }
    for (const auto& item : model->named_parameters()) {
      TORCH_CHECK(item.value().allclose(twin->named_parameters()[item.key()], 1e-4, 1e-6),
                  item.key(), " differs");
    }
  });
}

TEST(ShardedDataParallel, ParametersFrozenAndUnfrozenBetweenSteps) {
  launch_threads(2, [](Group group) {
    auto model = make_branches();
    model->right->weight.requires_grad_(false);
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1), kSmallBuckets);
    ShardedDataParallel<Branches> parallel(group, model, optimizer);
    const auto step = [&] {
      const Values before{model->left->weight.detach().clone(),
                          model->right->weight.detach().clone()};
      optimizer.zero_grad();
      parallel.forward(input(group.rank(), 0), true, true).backward();
      optimizer.step();
      return std::pair(!model->left->weight.equal(before[0]),
                       !model->right->weight.equal(before[1]));
    };
    TORCH_CHECK(step() == std::pair(true, false), "the frozen one has moved");
    model->right->weight.requires_grad_(true);
    model->left->weight.requires_grad_(false);
    TORCH_CHECK(step() == std::pair(false, true), "the unfrozen one has not moved");
    model->left->weight.requires_grad_(true);
    TORCH_CHECK(step() == std::pair(true, true), "both should have moved");
  });
}

TEST(ShardedDataParallel, ClippingIsThatOfTheWholeGradient) {
  for (const double norm_type : {1.0, 2.0, 3.5, std::numeric_limits<double>::infinity()}) {
    for (const auto mode : {Mode::kGradients, Mode::kOptimizer}) {
      launch_threads(3, [&](Group group) {
        auto model = make_model();
        OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(1.0), kSmallBuckets);
        ShardedDataParallel<Sequential> parallel(group, model, optimizer,
                                                 DataParallelOptions().mode(mode));
        loss_of(parallel.forward(input(group.rank(), 0))).backward();
        const double norm = optimizer.clip_grad_norm(0.01, norm_type).item<double>();
        optimizer.step();

        auto twin = make_model();
        at::Tensor loss = at::zeros({});
        for (int rank = 0; rank < 3; ++rank) {
          loss = loss + loss_of(twin->forward(input(rank, 0))) / 3;
        }
        loss.backward();
        const double expected =
            torch::nn::utils::clip_grad_norm_(twin->parameters(), 0.01, norm_type);
        torch::optim::SGD(twin->parameters(), SGDOptions(1.0)).step();
        TORCH_CHECK(std::abs(norm - expected) < 1e-5 * expected + 1e-7, norm, " is not ", expected);
        require_same(values_of(*model), values_of(*twin), false);
      });
    }
  }
}

TEST(ShardedDataParallel, GroupsAndSchedulersAndLateGroups) {
  launch_threads(2, [](Group group) {
    auto model = make_branches();
    auto twin = make_branches();
    const auto groups = [](const Branches& m) {
      std::vector<torch::optim::OptimizerParamGroup> result;
      result.emplace_back(m->trunk->parameters(), std::make_unique<SGDOptions>(SGDOptions(0.2)));
      result.emplace_back(m->left->parameters());
      return result;
    };
    OSS<torch::optim::SGD> optimizer(group, groups(model), SGDOptions(0.1));
    torch::optim::SGD plain(groups(twin), SGDOptions(0.1));
    optimizer.add_param_group({model->right->parameters()});
    plain.add_param_group({twin->right->parameters()});
    ShardedDataParallel<Branches> parallel(group, model, optimizer);
    torch::optim::StepLR schedule(optimizer, 2, 0.5);
    torch::optim::StepLR plain_schedule(plain, 2, 0.5);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      parallel.forward(input(0, step), true, true).backward();
      optimizer.step();
      schedule.step();
      plain.zero_grad();
      twin->forward(input(0, step), true, true).backward();
      plain.step();
      plain_schedule.step();
    }
    for (const auto& item : model->named_parameters()) {
      TORCH_CHECK(item.value().equal(twin->named_parameters()[item.key()]), item.key(), " differs");
    }
  });
}

TEST(ShardedDataParallel, LayoutsSharedWeightsAndOddParametersAreKept) {
  launch_threads(2, [](Group group) {
    torch::nn::Conv2d model(3, 8, 3);
    model->weight.set_data(model->weight.contiguous(at::MemoryFormat::ChannelsLast));
    model->register_parameter("alias", model->bias);
    model->register_parameter("empty", at::zeros({0}));
    model->register_parameter("steps", at::zeros({3}, at::kLong), false);
    const at::Tensor before = model->weight.detach().clone();
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1));
    ShardedDataParallel<torch::nn::Conv2d> parallel(group, model, optimizer);
    TORCH_CHECK(model->weight.is_contiguous(at::MemoryFormat::ChannelsLast), "the layout is lost");
    TORCH_CHECK(model->weight.equal(before) || group.rank() > 0, "the values have changed");
    TORCH_CHECK(model->named_parameters()["alias"].is_same(model->bias), "no longer shared");
    torch::nn::Conv2d twin(3, 8, 3);
    twin->weight.set_data(model->weight.detach().clone());
    twin->bias.set_data(model->bias.detach().clone());
    const at::Tensor x = at::arange(3 * 36, at::kFloat).view({1, 3, 6, 6}).cos();
    parallel.forward(x).pow(2).sum().backward();
    optimizer.step();
    twin->forward(x).pow(2).sum().backward();
    torch::optim::SGD(twin->parameters(), SGDOptions(0.1)).step();
    TORCH_CHECK(model->weight.allclose(twin->weight, 1e-5, 1e-5), "the weight is wrong");
    TORCH_CHECK(model->bias.allclose(twin->bias, 1e-5, 1e-5), "the bias is wrong");
  });
}

/// Its gradients come in another order than that of registration, which is expected at first.
struct Backwards : torch::nn::Module {
  Backwards()
      : second(register_module("second", torch::nn::Linear(20, 10))),
        first(register_module("first", torch::nn::Linear(10, 20))) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  torch::nn::Linear second;
  torch::nn::Linear first;
};

TEST(ShardedDataParallel, ANewOrderOfBucketsLeavesNoOldMemory) {
  launch_threads(2, [](Group group) {
    torch::nn::ModuleHolder<Backwards> model(std::make_shared<Backwards>());
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1), kSmallBuckets);
    ShardedDataParallel<torch::nn::ModuleHolder<Backwards>> parallel(group, model, optimizer);
    std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> before;
    for (const auto& parameter : model->parameters()) {
      before.push_back(parameter.storage().getWeakStorageImpl());
    }
    loss_of(parallel.forward(input(group.rank(), 0))).backward();
    for (const auto& memory : before) {
      TORCH_CHECK(memory.expired(), "the optimizer or somebody else holds on to an old bucket");
    }
    const at::Tensor weight = model->first->weight.detach().clone();
    optimizer.step();
    optimizer.wait_for_parameters();
    TORCH_CHECK(!weight.equal(model->first->weight), "the new buckets are not stepped");
  });
}

TEST(ShardedDataParallel, BuffersFollowRankZero) {
  launch_threads(2, [](Group group) {
    Sequential model(torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    for (int step = 0; step < 3; ++step) {
      loss_of(parallel.forward(at::arange(8, at::kFloat).view({2, 4}).add(group.rank())))
          .backward();
      optimizer.step();
    }
    model->eval();
    parallel.module()->train();
    parallel.forward(at::zeros({2, 4}));  // broadcasts first; then both see the same input
    const at::Tensor mean = model->named_buffers()["0.running_mean"];
    const at::Tensor zero = mean.clone();
    comm::broadcast(group, zero, 0).wait();
    TORCH_CHECK(mean.equal(zero), "rank ", group.rank(), " has a mean of its own");
  });
}

TEST(ShardedDataParallel, MoreRanksThanElements) {
  launch_threads(4, [](Group group) {
    Sequential model(torch::nn::Linear(1, 1));
    OSS<torch::optim::AdamW> optimizer(group, *model, AdamWOptions(0.1));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    for (int step = 0; step < 3; ++step) {
      loss_of(parallel.forward(at::ones({2, 1}))).backward();
      TORCH_CHECK(optimizer.clip_grad_norm(1e9).item<float>() > 0, "no norm");
      optimizer.step();
    }
    at::Tensor value = model->parameters()[0].detach().clone();
    comm::broadcast(group, value, 0).wait();
    TORCH_CHECK(value.equal(model->parameters()[0]), "ranks differ");
  });
}

TEST(ShardedDataParallel, DifferentModelsAreNamedAtWrapping) {
  test::expect_error(
      [] {
        launch_threads(2, [](Group group) {
          Sequential model(torch::nn::Linear(4, 3 + group.rank()));
          OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1));
        });
      },
      {"parameter 0", "'0.weight'", "[3, 4]", "[4, 4]"});
  test::expect_error(
      [] {
        launch_threads(2, [](Group group) {
          Sequential model(torch::nn::Linear(4, 3));
          if (group.rank() == 1) {
            model->push_back(torch::nn::Linear(3, 3));
          }
          OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1));
        });
      },
      {"parameter 2", "no more parameters", "'1.weight'"});
}

TEST(ShardedDataParallel, BadUseIsNamed) {
  launch_threads(1, [](Group group) {
    auto model = make_branches();
    OSS<torch::optim::SGD> some(group, *model->left, SGDOptions(0.1));
    test::expect_error([&] { ShardedDataParallel<Branches>(group, model, some); },
                       {"'trunk.weight'", "no sharded optimizer"});
    test::expect_error(
        [&] { ShardedDataParallel<Branches>(group, model, {}, DataParallelOptions()); },
        {"needs at least one OSS"});
    test::expect_error(
        [&] { OSS<torch::optim::SGD>(group, std::vector<at::Tensor>(), SGDOptions(0.1)); },
        {"no parameters"});
    test::expect_error([&] { some.clip_grad_norm(-1); }, {"max_norm", "-1"});
    test::expect_error([&] { some.clip_grad_norm(1, 0); }, {"norm_type", "0"});
  });
  launch_threads(1, [](Group group) {
    Sequential model(torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)));
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    test::expect_error([&] { parallel.forward(at::zeros({2}, at::kLong)).sum().backward(); },
                       {"'0.weight'", "Sparse"});
  });
}

TEST(ShardedDataParallel, AnOssOfAnotherModelIsRefused) {
  launch_threads(2, [](Group group) {
    auto model = make_model();
    auto other = make_model();
    OSS<torch::optim::SGD> optimizer(group, *other, SGDOptions(0.1));
    test::expect_error([&] { ShardedDataParallel<Sequential>(group, model, optimizer); },
                       {"none of the module's parameters"});
  });
}

TEST(ShardedDataParallel, WhatCannotTravelInADtypeIsRefusedAtOnce) {
  launch_threads(2, [](Group group) {
    auto model = make_model();
    const auto options = OssOptions().gather_dtype(at::kInt);
    test::expect_error([&] { OSS<torch::optim::SGD>(group, *model, SGDOptions(0.1), options); },
                       {"gather_dtype is Int"});
    OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1));
    test::expect_error(
        [&] {
          ShardedDataParallel<Sequential>(group, model, optimizer,
                                          DataParallelOptions().reduce_dtype(at::kInt));
        },
        {"reduce_dtype is Int"});
  });
}

TEST(ShardedDataParallel, AGroupThatTheOssDoesNotKnowIsRefused) {
  launch_threads(2, [](Group group) {
    auto model = make_model();
    const auto parameters = model->parameters();
    OSS<torch::optim::SGD> optimizer(group, Values{parameters[0]}, SGDOptions(0.1));
    torch::optim::Optimizer& plain = optimizer;
    plain.add_param_group(torch::optim::OptimizerParamGroup(Values{parameters[1]}));
    parameters[0].mutable_grad() = at::ones_like(parameters[0]);
    test::expect_error([&] { optimizer.step(); }, {"sharded 1 parameter group", "has 2"});
  });
}

TEST(ShardedDataParallel, OneOssMayServeTwoModelsWithAWrapperEach) {
  launch_threads(2, [](Group group) {
    auto first = make_model(0);
    auto second = make_model(1);
    auto plain_first = make_model(0);
    auto plain_second = make_model(1);
    const auto both = [](Sequential& a, Sequential& b) {
      Values all = a->parameters();
      for (const at::Tensor& parameter : b->parameters()) {
        all.push_back(parameter);
      }
      return all;
    };
    OSS<torch::optim::Adam> optimizer(group, both(first, second), torch::optim::AdamOptions(0.1));
    ShardedDataParallel<Sequential> parallel_first(group, first, optimizer);
    ShardedDataParallel<Sequential> parallel_second(group, second, optimizer);
    const Values parameters = both(plain_first, plain_second);
    torch::optim::Adam plain(parameters, torch::optim::AdamOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      const at::Tensor x = input(group.rank(), step);
      optimizer.zero_grad();
      (loss_of(parallel_first.forward(x)) + loss_of(parallel_second.forward(x))).backward();
      optimizer.step();
      plain.zero_grad();
      (loss_of(plain_first->forward(x)) + loss_of(plain_second->forward(x))).backward();
      for (const at::Tensor& parameter : parameters) {
        std::vector<at::Tensor> gradient{parameter.grad().div(group.size())};
        group.process_group()->allreduce(gradient)->wait();
        parameter.mutable_grad() = gradient[0];
      }
      plain.step();
    }
    test::require_same(values_of(*first), values_of(*plain_first), true);
    test::require_same(values_of(*second), values_of(*plain_second), true);
  });
}

TEST(ShardedDataParallel, OptionsThatDifferBetweenRanksAreNamedWhenItIsMade) {
  const auto made = [] {
    launch_threads(
        2,
        [](Group group) {
          auto model = make_model();
          OSS<torch::optim::SGD> optimizer(group, *model, SGDOptions(0.1),
                                           OssOptions().release_parameters(group.rank() == 0));
          ShardedDataParallel<Sequential> parallel(group, model, optimizer);
          for (int step = 0; step < 3; ++step) {
            loss_of(parallel.forward(input(0, step))).backward();
            optimizer.step();
          }
        },
        comm::LaunchOptions().timeout_s(5));
  };
  test::expect_error(made, {"release_parameters"});
}

}  // namespace sharded_data_parallel_test
}  // namespace fairshard

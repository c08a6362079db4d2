// Recomputed gradients against those of a plain call, bit for bit.
#include "support/training.h"
#include <fairshard/amp/autocast.h>
#include <fairshard/nn/checkpoint.h>

#include <gtest/gtest.h>

namespace fairshard {
namespace {

using torch::nn::Sequential;

Sequential make_blocks() {
  torch::manual_seed(3);
  return Sequential(torch::nn::Linear(10, 20), torch::nn::Dropout(0.5), torch::nn::Tanh(),
                    torch::nn::Linear(20, 10), torch::nn::Dropout(0.3));
}

/// The output, the input's gradient and the parameters', of a loss that runs `fn` on an input.
template <typename Fn>
test::Values gradients_of(const torch::nn::Module& module, Fn fn) {
  torch::manual_seed(7);
  at::Tensor x = test::input(0, 0).requires_grad_();
  const at::Tensor output = fn(x);
  test::loss_of(output).backward();
  test::Values result{output.detach(), x.grad()};
  for (const auto& parameter : module.parameters()) {
    result.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  return result;
}

TEST(Checkpoint, GradientsAndDropoutAreThoseOfThePlainCall) {
  auto model = make_blocks();
  const auto plain = gradients_of(*model, [&](const at::Tensor& x) { return model->forward(x); });
  int runs = 0;
  const auto ours = gradients_of(*model, [&](const at::Tensor& x) {
    return checkpoint(
        [&](const at::Tensor& y) {
          ++runs;
          return model->forward(y);
        },
        x);
  });
  EXPECT_EQ(runs, 2);
  test::require_same(ours, plain, true);
}

TEST(Checkpoint, ItNestsAndMayStandSeveralTimes) {
  auto first = make_blocks();
  auto second = make_blocks();
  const auto call = [](Sequential& model) {
    return [&model](const at::Tensor& x) { return model->forward(x); };
  };
  const auto plain = gradients_of(*first, [&](const at::Tensor& x) {
    return first->forward(first->forward(second->forward(x)));
  });
  second->zero_grad();
  const auto ours = gradients_of(*first, [&](const at::Tensor& x) {
    return checkpoint(
        [&](const at::Tensor& y) {
          return checkpoint(call(first), checkpoint(call(first), second->forward(y)));
        },
        x);
  });
  test::require_same(ours, plain, true);
}

TEST(Checkpoint, TuplesAndInputsOfAnyKind) {
  auto model = make_blocks();
  using Pair = std::tuple<at::Tensor, at::Tensor>;
  const auto fn = [&](const Pair& pair, double factor, const std::vector<at::Tensor>& more) {
    const at::Tensor sum = std::get<0>(pair) * factor + std::get<1>(pair) + more[0];
    return std::make_tuple(model->forward(sum), sum.argmax(1), std::string("text"));
  };
  const at::Tensor constant = test::input(1, 0);
  at::Tensor extra = test::input(2, 0).requires_grad_();
  const auto run = [&](bool is_checkpointed) {
    return gradients_of(*model, [&](const at::Tensor& x) {
      const auto [y, index, text] =
          is_checkpointed ? checkpoint(fn, Pair(x, constant), 0.5, std::vector<at::Tensor>{extra})
                          : fn(Pair(x, constant), 0.5, {extra});
      EXPECT_EQ(text, "text");
      EXPECT_FALSE(index.requires_grad());
      return y;
    });
  };
  auto plain = run(false);
  plain.push_back(extra.grad().clone());
  extra.mutable_grad().reset();
  auto ours = run(true);
  ours.push_back(extra.grad());
  test::require_same(ours, plain, true);
  EXPECT_FALSE(constant.grad().defined());
}

TEST(Checkpoint, AutocastIsThatOfTheFirstRun) {
  auto model = make_blocks();
  const auto run = [&](bool is_checkpointed) {
    return gradients_of(*model, [&](const at::Tensor& x) {
      const Autocast autocast(at::kCPU);  // over when backward runs
      const auto fn = [&](const at::Tensor& y) { return model->forward(y); };
      return (is_checkpointed ? checkpoint(fn, x) : fn(x)).to(at::kFloat);
    });
  };
  test::require_same(run(true), run(false), true);
}

TEST(Checkpoint, InputsThatNeedNoGradientAndNoGradMode) {
  auto model = make_blocks();
  const auto fn = [&](const at::Tensor& y) { return model->forward(y); };
  torch::manual_seed(1);
  test::loss_of(checkpoint(fn, test::input(0, 0))).backward();
  EXPECT_TRUE(model->parameters()[0].grad().defined());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint(fn, test::input(0, 0)).requires_grad());
}

TEST(Checkpoint, ShardedDataParallelSeesTheGradients) {
  comm::launch_threads(2, [](comm::Group group) {
    struct Net : torch::nn::Module {
      Net() : inner(register_module("inner", test::make_model())) {}
      at::Tensor forward(const at::Tensor& x) {
        return checkpoint([&](const at::Tensor& y) { return inner->forward(y); }, x);
      }
      Sequential inner;
    };
    torch::nn::ModuleHolder<Net> model(std::make_shared<Net>());
    OSS<torch::optim::SGD> optimizer(group, *model, torch::optim::SGDOptions(0.1),
                                     test::kSmallBuckets);
    ShardedDataParallel<torch::nn::ModuleHolder<Net>> parallel(group, model, optimizer);
    for (int step = 0; step < test::kSteps; ++step) {
      optimizer.zero_grad();
      test::loss_of(parallel.forward(test::input(group.rank(), step))).backward();
      optimizer.step();
    }
    test::require_same(test::values_of(*model),
                       test::train_plainly<torch::optim::SGD>(group, torch::optim::SGDOptions(0.1)),
                       true);
  });
}

}  // namespace
}  // namespace fairshard

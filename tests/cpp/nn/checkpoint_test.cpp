// Recomputed gradients against those of a plain call, bit for bit.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/amp/autocast.h>
#include <fairshard/nn/checkpoint.h>

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace fairshard {
namespace checkpoint_test {

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

TEST(Checkpoint, GradientsPassThroughResultsOfEveryStandardKind) {
  auto model = make_blocks();
  const auto plain = gradients_of(*model, [&](const at::Tensor& x) { return model->forward(x); });
  const auto expect_same = [&](const char* kind, auto pack, auto unpack) {
    SCOPED_TRACE(kind);
    const auto ours = gradients_of(*model, [&](const at::Tensor& x) {
      return unpack(checkpoint([&](const at::Tensor& y) { return pack(model->forward(y)); }, x));
    });
    ASSERT_TRUE(ours[1].defined()) << "the input got no gradient";
    test::require_same(ours, plain, true);
  };
  using at::Tensor;
  expect_same(
      "pair", [](const Tensor& y) { return std::pair(y, 1); }, [](auto r) { return r.first; });
  expect_same(
      "optional", [](const Tensor& y) { return std::optional(y); }, [](auto r) { return *r; });
  expect_same("array", [](const Tensor& y) { return std::array{y}; }, [](auto r) { return r[0]; });
  expect_same(
      "map", [](const Tensor& y) { return std::map<std::string, Tensor>{{"y", y}}; },
      [](auto r) { return r.at("y"); });
  expect_same(
      "vector of tuples", [](const Tensor& y) { return std::vector{std::tuple(y, true)}; },
      [](auto r) { return std::get<0>(r.at(0)); });
}

/// Tensors in it cannot be found, so that it is refused when it is compiled.
struct ClassOfOnesOwn {
  at::Tensor value;
};
static_assert(!detail::finds_all_tensors<ClassOfOnesOwn>());
static_assert(!detail::finds_all_tensors<std::vector<std::optional<ClassOfOnesOwn>>>());
static_assert(detail::finds_all_tensors<std::tuple<at::Tensor, std::string, std::vector<bool>>>());

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

/// A sum of squares, and its gradients to some of what it depends on.
test::Values partial_gradients(const at::Tensor& output, const test::Values& inputs,
                               bool retain_graph = false) {
  return torch::autograd::grad({output.to(at::kFloat).square().sum()}, inputs, {}, retain_graph);
}

TEST(Checkpoint, AGradientLeavesAsSoonAsItIsComputed) {
  torch::nn::Linear first(10, 20);
  torch::nn::Linear second(20, 10);
  std::vector<std::string> order;
  const auto note = [&](const char* name) {
    return [&order, name](const at::Tensor&) { order.emplace_back(name); };
  };
  first->weight.register_hook(note("first"));
  second->weight.register_hook(note("second"));
  const at::Tensor y = checkpoint(
      [&](const at::Tensor& x) {
        const at::Tensor middle = first(x);
        middle.register_hook(note("middle"));  // a hook of the function's own
        return second(middle);
      },
      test::input(0, 0));
  test::loss_of(y).backward();
  EXPECT_EQ(order, (std::vector<std::string>{"second", "middle", "first"}));
}

TEST(Checkpoint, PartialGradientsAndSecondBackwards) {
  auto model = make_blocks();
  at::Tensor x = test::input(0, 0).requires_grad_();
  const auto run = [&](bool is_checkpointed) {
    torch::manual_seed(7);
    const auto fn = [&](const at::Tensor& y) { return model->forward(y); };
    return is_checkpointed ? checkpoint(fn, x) : fn(x);
  };
  const auto parameters = model->parameters();
  for (const test::Values& wanted : {test::Values{x}, {parameters[1]}, {parameters[2], x}}) {
    const at::Tensor output = run(true);
    const auto plain = partial_gradients(run(false), wanted);
    test::require_same(partial_gradients(output, wanted, true), plain, true);
    test::require_same(partial_gradients(output, wanted), plain, true);
    EXPECT_THROW(partial_gradients(output, wanted), c10::Error);
  }
}

TEST(Checkpoint, WhatTheFunctionCapturesHasItsGradients) {
  auto model = make_blocks();
  const at::Tensor leaf = test::input(1, 0).requires_grad_();
  const auto run = [&](bool is_checkpointed) {
    return gradients_of(*model, [&](const at::Tensor& x) {
      const at::Tensor captured = leaf.exp();  // used by the function, and outside
      const auto fn = [&model, captured](const at::Tensor& y) {
        return model->forward(y * captured);
      };
      return (is_checkpointed ? checkpoint(fn, x) : fn(x)) + captured;
    });
  };
  auto plain = run(false);
  plain.push_back(leaf.grad().clone());
  leaf.mutable_grad().reset();
  auto ours = run(true);
  ours.push_back(leaf.grad());
  test::require_same(ours, plain, true);
}

TEST(Checkpoint, ResultsThatAreNotComputed) {
  const at::Tensor parameter = test::input(1, 0).requires_grad_();
  at::Tensor x = test::input(0, 0).requires_grad_();
  const auto [same, own, constant] =
      checkpoint([&](const at::Tensor& y) { return std::make_tuple(y, parameter, y.detach()); }, x);
  EXPECT_FALSE(constant.requires_grad());
  (2 * same + 3 * own).sum().backward();
  EXPECT_TRUE(x.grad().eq(2).all().item<bool>());
  EXPECT_TRUE(parameter.grad().eq(3).all().item<bool>());
}

TEST(Checkpoint, InputsAreFreedByBackward) {
  auto model = make_blocks();
  at::Tensor x = test::input(0, 0).requires_grad_();
  at::Tensor input = x.exp();
  const c10::weak_intrusive_ptr<c10::StorageImpl> memory(input.storage().getWeakStorageImpl());
  const at::Tensor y =
      checkpoint([&](const at::Tensor& each) { return model->forward(each); }, std::move(input));
  const at::Tensor loss = test::loss_of(y);
  EXPECT_FALSE(memory.expired());
  loss.backward();
  EXPECT_TRUE(memory.expired());  // although the graph is there still
}

TEST(Checkpoint, WhatIsChangedInPlaceBeforeBackwardIsRefused) {
  torch::nn::Linear layer(10, 5);
  const auto changed_between = [&](const at::Tensor& x, const at::Tensor& changed) {
    return [&layer, x, changed] {
      const at::Tensor y = checkpoint([&](const at::Tensor& each) { return layer(each); }, x);
      const at::NoGradGuard no_grad;
      changed.add_(1);
      const at::AutoGradMode grad(true);
      y.sum().backward();
    };
  };
  const std::vector<std::string> words{"modified by an inplace operation"};
  const at::Tensor constant = test::input(0, 0);
  test::expect_error(changed_between(constant, constant), words);
  const at::Tensor leaf = test::input(0, 0).requires_grad_();
  test::expect_error(changed_between(leaf, leaf), words);
  const at::Tensor computed = test::input(0, 0).requires_grad_().exp();
  test::expect_error(changed_between(computed, computed), words);
  test::expect_error(changed_between(leaf, layer->weight), {"checkpoint", "parameter", "[5, 10]"});
}

TEST(Checkpoint, ASecondRunThatIsAnotherIsRefused) {
  const at::Tensor x = test::input(0, 0).requires_grad_();
  int runs = 0;
  const auto changing = [&](const at::Tensor& y) { return ++runs % 2 == 1 ? y.exp() : y.tanh(); };
  test::expect_error([&] { checkpoint(changing, x).sum().backward(); },
                     {"did something else in its second run", "ExpBackward", "TanhBackward"});
  const auto growing = [&](const at::Tensor& y) {
    return ++runs % 2 == 1 ? y.exp() : y.exp().exp();
  };
  test::expect_error([&] { checkpoint(growing, x).sum().backward(); },
                     {"through 1 operations, and then through 2"});
}

TEST(Checkpoint, GradientsOfGradientsAreRefused) {
  const at::Tensor x = test::input(0, 0).requires_grad_();
  const at::Tensor y = checkpoint([](const at::Tensor& each) { return each.exp(); }, x);
  test::expect_error(
      [&] {
        torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
      },
      {"create_graph"});
}

}  // namespace checkpoint_test
}  // namespace fairshard

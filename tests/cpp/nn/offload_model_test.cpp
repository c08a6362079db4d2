// An offloaded model against the same model without it, bit for bit, on the GPU if there is one.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/nn/offload_model.h>
#include <fairshard/optim/fused.h>

#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace fairshard {
namespace offload_model_test {

using test::Values;
using torch::nn::Linear;
using torch::nn::Sequential;

at::Device device() { return at::hasCUDA() ? at::Device("cuda:0") : at::Device("cpu"); }

Sequential make_blocks() {
  torch::manual_seed(3);
  Sequential model(Linear(10, 20), torch::nn::Dropout(0.5), torch::nn::BatchNorm1d(20),
                   Linear(20, 20), torch::nn::ReLU(torch::nn::ReLUOptions(true)), Linear(20, 30),
                   torch::nn::Dropout(0.3), Linear(30, 5));
  model[5]->as<Linear>()->bias.requires_grad_(false);
  return model;
}

template <typename Forward, typename Optimizer>
Values train(Sequential& model, Forward forward, Optimizer& optimizer, int steps = 10) {
  torch::manual_seed(7);
  Values results;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    auto x = test::input(0, step).to(device()).requires_grad_();
    const at::Tensor output = forward(x);
    test::loss_of(output).backward();
    results.push_back(output.detach().cpu());
    results.push_back(x.grad().cpu());
    for (const auto& parameter : model->parameters()) {
      if (parameter.grad().defined()) {
        results.push_back(parameter.grad().cpu().clone());
      }
    }
    optimizer.step();
  }
  for (const auto& value : model->parameters()) {
    results.push_back(value.detach().cpu().clone());
  }
  for (const auto& value : model->buffers()) {
    results.push_back(value.cpu().to(at::kFloat));
  }
  return results;
}

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.05).momentum(0.9); }

Values train_without() {
  auto model = make_blocks();
  model->to(device());
  SGD optimizer(model->parameters(), sgd());
  return train(model, [&](const at::Tensor& x) { return model->forward(x); }, optimizer);
}

TEST(OffloadModel, TrainsAsTheModelWithoutIt) {
  const Values plain = train_without();
  for (const bool checkpoints : {false, true}) {
    for (const int64_t slices : {1, 3, 50}) {
      auto model = make_blocks();
      OffloadModel offload(
          model,
          OffloadOptions().device(device()).num_slices(slices).checkpoint_activation(checkpoints));
      SGD optimizer(model->parameters(), sgd());
      const auto ours =
          train(model, [&](const at::Tensor& x) { return offload.forward(x); }, optimizer);
      // On a GPU the optimizers run on different devices, and round differently.
      test::require_same(ours, plain, device().is_cpu());
      EXPECT_LE(offload.report().most_filled, offload.report().slots);
    }
  }
}

TEST(OffloadModel, ABackwardThatStepsGivesTheParametersOfAStepAfterIt) {
  const auto run = [](bool in_backward, auto make_optimizer) {
    auto model = make_blocks();
    OffloadModel offload(model, OffloadOptions().device(device()).num_slices(3));
    auto optimizer = make_optimizer(*model);
    if (in_backward) {
      offload.step_in_backward(optimizer);
    }
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      torch::manual_seed(step);
      test::loss_of(offload.forward(test::input(0, step).to(device()))).backward();
      EXPECT_EQ(model->parameters()[0].grad().defined(), !in_backward);
      optimizer.step();
    }
    offload.wait_for_step();
    return test::values_of(*model);
  };
  const auto check = [&](auto make) {
    test::require_same(run(true, make), run(false, make), true);
  };
  check([](torch::nn::Module& model) {
    return AdamW(model.parameters(), torch::optim::AdamWOptions(1e-2).amsgrad(true));
  });
  check([](torch::nn::Module& model) {
    return Adam(model.parameters(), torch::optim::AdamOptions(1e-2).weight_decay(0.1));
  });
  check([](torch::nn::Module& model) { return SGD(model.parameters(), sgd()); });
}

TEST(OffloadModel, MicrobatchesGiveTheSameGradientsUpToSummation) {
  torch::manual_seed(1);
  auto run = [](int64_t microbatches, bool checkpoints) {
    torch::manual_seed(1);
    Sequential model(Linear(10, 20), torch::nn::Tanh(), Linear(20, 20), Linear(20, 3));
    OffloadModel offload(model, OffloadOptions()
                                    .device(device())
                                    .num_microbatches(microbatches)
                                    .checkpoint_activation(checkpoints));
    test::loss_of(offload.forward(at::cat({test::input(0, 0), test::input(1, 0)}))).backward();
    EXPECT_EQ(offload.report().fills, 3);  // whatever the number of parts
    Values gradients;
    for (const auto& parameter : model->parameters()) {
      gradients.push_back(parameter.grad().clone());
    }
    return gradients;
  };
  const auto whole = run(1, false);
  test::require_same(run(4, false), whole, false);
  test::require_same(run(4, true), whole, false);
}

TEST(OffloadModel, BlocksMayHaveSeveralInputsAndOutputs) {
  torch::manual_seed(1);
  Linear first(10, 10);
  Linear second(10, 10);
  const auto pair = [](Linear layer) {
    return OffloadBlock{layer.ptr(), [layer](const Values& x) mutable -> Values {
                          return {layer->forward(x[0]) * x[1], x[0] + x[1]};
                        }};
  };
  const auto x = test::input(0, 0);
  const auto y = test::input(1, 0);
  const Values plain = pair(second).forward(pair(first).forward({x, y}));
  const std::vector<OffloadBlock> blocks{pair(first), pair(second)};
  OffloadModel offload(blocks, OffloadOptions().num_slices(2));
  test::require_same(offload.forward(Values{x, y}), plain, true);
}

TEST(OffloadModel, LowPrecisionOnTheDeviceLearnsWithFloatMasters) {
  for (const bool in_backward : {false, true}) {
    torch::manual_seed(1);
    Sequential model(Linear(10, 64), torch::nn::Tanh(), Linear(64, 64), torch::nn::Tanh(),
                     Linear(64, 1));
    OffloadModel offload(model, OffloadOptions().device(device()).param_dtype(at::kBFloat16));
    AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(3e-3));
    if (in_backward) {
      offload.step_in_backward(optimizer);
    }
    float first = 0;
    float last = 0;
    for (int step = 0; step < 60; ++step) {
      optimizer.zero_grad();
      const auto x = test::input(0, step % 4).to(device());
      const auto loss =
          (offload.forward(x.to(at::kBFloat16)).to(at::kFloat) - x.sum(1, true)).pow(2).mean();
      loss.backward();
      optimizer.step();
      last = loss.item<float>();
      first = step == 0 ? last : first;
    }
    offload.wait_for_step();
    EXPECT_EQ(model->parameters()[0].scalar_type(), at::kFloat);
    EXPECT_LT(last, 0.1 * first);
  }
}

TEST(OffloadModel, BadInputIsNamedAndTheModelStaysUsable) {
  auto model = make_blocks();
  const auto make = [&](const OffloadOptions& options) {
    return [&model, options] { OffloadModel offload(model, options); };
  };
  test::expect_error(make(OffloadOptions().num_slices(0)), {"num_slices is 0"});
  test::expect_error(make(OffloadOptions().num_microbatches(0)), {"num_microbatches is 0"});
  test::expect_error(make(OffloadOptions().device(at::Device("cuda:99"))), {"cuda:99"});
  model->forward(test::input(0, 0));
  OffloadModel offload(model, OffloadOptions().num_microbatches(4));
  test::expect_error([&] { offload.forward(test::input(0, 0)); }, {"a batch of 6", "= 4"});
  test::expect_error([&] { offload.forward(at::ones({4, 11})); }, {"mat1 and mat2"});
  offload.forward(at::ones({8, 10}));
  torch::optim::RMSprop optimizer(model->parameters());
  test::expect_error([&] { offload.step_in_backward(optimizer); }, {"AdamW, Adam or SGD"});
}

TEST(OffloadModel, AGraphMayLiveLongerThanTheModelThatMadeIt) {
  for (const bool is_checkpointed : {false, true}) {
    auto model = make_blocks();
    auto twin = make_blocks();
    model->eval();  // without dropout
    twin->eval();
    at::Tensor loss;
    {
      OffloadModel offload(model, OffloadOptions().checkpoint_activation(is_checkpointed));
      loss = test::loss_of(offload.forward(test::input(0, 0)));
    }
    loss.backward();
    test::loss_of(twin->forward(test::input(0, 0))).backward();
    EXPECT_TRUE(model->parameters()[0].grad().equal(twin->parameters()[0].grad()));
  }
}

TEST(OffloadModel, ModulesThatComeLaterAreNotLeftOutWithoutAWord) {
  auto model = make_blocks();
  OffloadModel offload(model);
  model->push_back(Linear(5, 5));
  test::expect_error([&] { offload.forward(test::input(0, 0)); },
                     {"had 8 modules", "has 9 now", "new OffloadModel"});
  test::expect_error([] { OffloadModel none(std::vector<OffloadBlock>(1)); }, {"has no forward"});
}

TEST(OffloadModel, AParameterThatTheOptimizerLacksIsNamedInForward) {
  auto model = make_blocks();
  auto parameters = model->parameters();
  parameters.erase(parameters.begin());
  AdamW optimizer(parameters, torch::optim::AdamWOptions(0.1));
  OffloadModel offload(model);
  offload.step_in_backward(optimizer);
  const auto forward = [&] { offload.forward(test::input(0, 0)); };
  test::expect_error(forward, {"'0.weight'", "[20, 10]", "not in the optimizer", "freeze it"});
  {
    const at::NoGradGuard no_grad;
    forward();
  }
  model->parameters()[0].requires_grad_(false);
  forward();
}

TEST(OffloadModel, AParameterOfTheOptimizerThatIsNotTheModelsIsNamed) {
  auto model = make_blocks();
  auto parameters = model->parameters();
  parameters.push_back(torch::ones({2, 3}).requires_grad_());
  AdamW optimizer(parameters, torch::optim::AdamWOptions(0.1));
  OffloadModel offload(model);
  offload.step_in_backward(optimizer);
  test::expect_error([&] { offload.forward(test::input(0, 0)); },
                     {"[2, 3]", "not one of the offloaded model's"});
}

}  // namespace offload_model_test
}  // namespace fairshard

// The fused optimizers against torch's.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/optim/fused.h>

#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <sstream>

namespace fairshard {
namespace fused_test {

using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

template <typename Fused, typename Plain, typename Options>
void compare(const Options& options) {
  auto model = test::make_model();
  auto twin = test::make_model();
  Fused fused(model->parameters(), options);
  Plain plain(twin->parameters(), options);
  for (int step = 0; step < 20; ++step) {
    const at::Tensor x = test::input(0, step);
    fused.zero_grad();
    plain.zero_grad();
    test::loss_of(model->forward(x)).backward();
    test::loss_of(twin->forward(x)).backward();
    if (step == 3) {  // a parameter may have no gradient, and its state then begins later
      model->parameters()[0].mutable_grad().reset();
      twin->parameters()[0].mutable_grad().reset();
    }
    fused.step();
    plain.step();
  }
  test::require_same(test::values_of(*model), test::values_of(*twin), false);
}

TEST(Fused, AdamWIsTorchs) {
  compare<AdamW, torch::optim::AdamW>(AdamWOptions(1e-2).weight_decay(0.1));
  compare<AdamW, torch::optim::AdamW>(AdamWOptions(1e-2).amsgrad(true).betas({0.8, 0.95}));
}

TEST(Fused, AdamIsTorchs) {
  compare<Adam, torch::optim::Adam>(AdamOptions(1e-2).weight_decay(0.1));
}

TEST(Fused, SgdIsTorchs) {
  compare<SGD, torch::optim::SGD>(SGDOptions(0.1));
  compare<SGD, torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  compare<SGD, torch::optim::SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true));
}

/// Elements 0, 7, 25 and 49 of a parameter after 100 steps by gradients that are written out here.
template <typename Fused, typename Options>
std::vector<float> after_100_steps(const Options& options) {
  const at::Tensor parameter = at::linspace(-1, 1, 50, at::kDouble).to(at::kFloat);
  const at::Tensor k = at::arange(50, at::kDouble);
  Fused optimizer(std::vector<at::Tensor>{parameter}, options);
  for (int step = 0; step < 100; ++step) {
    parameter.mutable_grad() = (k * 0.7 + step * 0.3).sin().to(at::kFloat) + parameter * 0.5;
    optimizer.step();
  }
  std::vector<float> result;
  for (const int64_t i : {0, 7, 25, 49}) {
    result.push_back(parameter[i].item<float>());
  }
  return result;
}

// What Python's torch.optim classes with fused=True gave for the same (torch 2.11).
TEST(Fused, ValuesAreThoseOfPythonsFusedOptimizers) {
  using Values = std::vector<float>;
  EXPECT_EQ(after_100_steps<AdamW>(AdamWOptions(1e-2).weight_decay(0.1).betas({0.9, 0.95})),
            (Values{-0x1.10e258p-1, -0x1.5918a0p-2, 0x1.8c2f98p-7, 0x1.0b4ad4p-1}));
  EXPECT_EQ(after_100_steps<AdamW>(AdamWOptions(1e-2).weight_decay(0.01).amsgrad(true)),
            (Values{-0x1.254b94p-1, -0x1.783706p-2, 0x1.ab7c18p-7, 0x1.1eedf8p-1}));
  EXPECT_EQ(after_100_steps<Adam>(AdamOptions(1e-2).weight_decay(0.1)),
            (Values{-0x1.07cdeap-1, -0x1.5397b8p-2, 0x1.44c0a0p-7, 0x1.0319e2p-1}));
  EXPECT_EQ(after_100_steps<SGD>(SGDOptions(1e-2).momentum(0.9).weight_decay(0.05).nesterov(true)),
            (Values{-0x1.639538p-4, -0x1.a3a2bep-4, -0x1.b061b8p-4, 0x1.b3ec2cp-4}));
}

/// A bfloat16 parameter with a master beside a float32 one that gets the same gradients.
template <typename Fused, typename Options>
void compare_with_float32(const Options& options) {
  const at::Tensor exact = at::linspace(-1, 1, 50).to(at::kBFloat16).to(at::kFloat);
  const at::Tensor rounded = exact.to(at::kBFloat16);
  Fused plain(std::vector<at::Tensor>{exact}, options);
  Fused with_master(std::vector<at::Tensor>{rounded}, options, FusedOptions().master_weights(true));
  for (int step = 0; step < 20; ++step) {
    const at::Tensor gradient = (at::arange(50) * 0.7 + step * 0.3).sin().to(at::kBFloat16);
    exact.mutable_grad() = gradient.to(at::kFloat);
    rounded.mutable_grad() = gradient;
    plain.step();
    with_master.step();
    ASSERT_TRUE(rounded.equal(exact.to(at::kBFloat16))) << "step " << step;
    if (step == 10) {  // what the user writes rules, and the rest stays exact
      exact.slice(0, 0, 5).fill_(0.5);
      rounded.slice(0, 0, 5).fill_(0.5);
    }
  }
}

TEST(Fused, OptionsThatTorchRefusesAreRefused) {
  const auto parameters = test::make_model()->parameters();
  const auto adam = [&](const AdamOptions& options) { return [=] { Adam(parameters, options); }; };
  const auto sgd = [&](const SGDOptions& options) { return [=] { SGD(parameters, options); }; };
  test::expect_error(adam(AdamOptions(-1)), {"lr is -1"});
  test::expect_error(adam(AdamOptions(0.1).betas({0.9, 1})), {"betas are 0.9 and 1"});
  test::expect_error(adam(AdamOptions(0.1).eps(-1)), {"eps is -1"});
  test::expect_error([&] { AdamW(parameters, AdamWOptions(0.1).weight_decay(-1)); },
                     {"weight_decay is -1"});
  test::expect_error(sgd(SGDOptions(-1)), {"lr is -1"});
  test::expect_error(sgd(SGDOptions(0.1).momentum(-1)), {"momentum is -1"});
  test::expect_error(sgd(SGDOptions(0.1).nesterov(true)), {"nesterov", "momentum above 0"});
}

TEST(Fused, MasterWeightsStepInFloat32) {
  compare_with_float32<AdamW>(AdamWOptions(1e-4).weight_decay(0.1));
  compare_with_float32<Adam>(AdamOptions(1e-4));
  compare_with_float32<SGD>(SGDOptions(1e-4).momentum(0.9));
}

TEST(Fused, ManyTensorsAreSteppedByAllThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(3);
  std::vector<at::Tensor> ours;
  std::vector<at::Tensor> theirs;
  for (int64_t i = 1; i <= 20; ++i) {
    ours.push_back(at::linspace(-1, 1, 37 * i));
    theirs.push_back(ours.back().clone());
    ours.back().mutable_grad() = theirs.back().cos();
    theirs.back().mutable_grad() = theirs.back().cos();
  }
  SGD fused(ours, SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD plain(theirs, SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    fused.step();
    plain.step();
  }
  at::set_num_threads(threads);
  test::require_same(ours, theirs, false);
}

TEST(Fused, StateIsSavedAndLoaded) {
  auto model = test::make_model();
  AdamW optimizer(model->parameters(), AdamWOptions(1e-2));
  const auto train = [](auto& some_model, auto& some_optimizer, int step) {
    some_optimizer.zero_grad();
    test::loss_of(some_model->forward(test::input(0, step))).backward();
    some_optimizer.step();
  };
  train(model, optimizer, 0);
  std::stringstream stream;
  torch::save(optimizer, stream);
  auto twin = test::make_model();
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    twin->parameters()[i].set_data(model->parameters()[i].detach().clone());
  }
  AdamW resumed(twin->parameters(), AdamWOptions(1.0));
  torch::load(resumed, stream);
  train(model, optimizer, 1);
  train(twin, resumed, 1);
  test::require_same(test::values_of(*model), test::values_of(*twin), true);
}

}  // namespace fused_test
}  // namespace fairshard

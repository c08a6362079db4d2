// The fused optimizers against torch's.
#include "support/training.h"
#include <fairshard/optim/fused.h>

#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <sstream>

namespace fairshard {
namespace {

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

}  // namespace
}  // namespace fairshard

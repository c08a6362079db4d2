// What a checkpoint holds beside models and sharded optimizers, and what does not fit.
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/training.h"
#include <fairshard/checkpoint.h>
#include <fairshard/nn/slowmo.h>
#include <fairshard/optim/adascale.h>
#include <fairshard/optim/fused.h>
#include <fairshard/optim/optimizer_fields.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fairshard {
namespace parts_test {

using comm::Group;
using comm::launch_threads;
using test::expect_error;
using test::TemporaryDirectory;
using torch::nn::Linear;

TEST(Checkpoint, ValuesTensorsAndGeneratorsComeBack) {
  const TemporaryDirectory directory;
  int64_t epoch = 3;
  double best = std::numeric_limits<double>::infinity();
  double loss = 0.1;
  bool is_warm = true;
  std::string name = "a \"b\" \xc3\xa9";
  at::Tensor average = at::arange(6, at::kFloat).view({2, 3}).t();
  Checkpoint checkpoint(directory.path());
  checkpoint.add("epoch", &epoch).add("best", &best).add("loss", &loss).add("warm", &is_warm);
  checkpoint.add("name", &name).add("average", average).add_rng();
  EXPECT_FALSE(checkpoint.load());
  torch::manual_seed(5);
  at::rand({3});
  checkpoint.save(12);
  const at::Tensor next = at::rand({10});
  epoch = 0;
  best = loss = 0;
  is_warm = false;
  name.clear();
  average.zero_();
  EXPECT_EQ(checkpoint.load()->step, 12);
  EXPECT_EQ(epoch, 3);
  EXPECT_EQ(best, std::numeric_limits<double>::infinity());
  EXPECT_EQ(loss, 0.1);
  EXPECT_TRUE(is_warm);
  EXPECT_EQ(name, "a \"b\" \xc3\xa9");
  EXPECT_TRUE(average.equal(at::arange(6, at::kFloat).view({2, 3}).t()));
  EXPECT_TRUE(at::rand({10}).equal(next));
  // Nan, and a value of another type.
  best = std::nan("");
  checkpoint.save(13);
  best = 0;
  checkpoint.load();
  EXPECT_TRUE(std::isnan(best));
  Checkpoint other(directory.path());
  other.add("name", &epoch);
  expect_error([&] { other.load(); }, {"'name'"});
}

TEST(Checkpoint, NumbersOfAllSizesAndVectorsComeBack) {
  const TemporaryDirectory directory;
  int count = -3;
  uint8_t small = 200;
  size_t large = std::numeric_limits<size_t>::max();
  float rate = 0.25F;
  std::vector<double> losses = {1.5, std::numeric_limits<double>::infinity()};
  std::vector<int> order = {3, 1, 2};
  std::vector<bool> seen = {true, false};
  std::vector<std::string> names = {"a", ""};
  std::vector<int64_t> none;
  const auto add_all = [&](Checkpoint& checkpoint) {
    checkpoint.add("count", &count).add("small", &small).add("large", &large).add("rate", &rate);
    checkpoint.add("losses", &losses).add("order", &order).add("seen", &seen);
    checkpoint.add("names", &names).add("none", &none);
  };
  Checkpoint checkpoint(directory.path());
  add_all(checkpoint);
  checkpoint.save(1);
  count = small = 0;
  large = 0;
  rate = 0;
  losses = {};
  order = {7};
  seen = {};
  names = {};
  none = {1};
  checkpoint.load();
  EXPECT_EQ(std::tie(count, small, large, rate),
            std::make_tuple(-3, 200, std::numeric_limits<size_t>::max(), 0.25F));
  EXPECT_EQ(losses, (std::vector<double>{1.5, std::numeric_limits<double>::infinity()}));
  EXPECT_EQ(order, (std::vector<int>{3, 1, 2}));
  EXPECT_EQ(seen, (std::vector<bool>{true, false}));
  EXPECT_EQ(names, (std::vector<std::string>{"a", ""}));
  EXPECT_TRUE(none.empty());
}

TEST(Checkpoint, ValuesThatDoNotFitAreNamed) {
  const TemporaryDirectory directory;
  int count = -300;
  std::vector<int> order = {3, 1};
  Checkpoint(directory.path()).add("count", &count).add("order", &order).save(1);
  const auto error_for = [&](const std::string& name, auto value) {
    return test::error_of([&] { Checkpoint(directory.path()).add(name, &value).load(); });
  };
  const auto expect_words = [](const std::string& error, const std::string& words) {
    EXPECT_NE(error.find(words), std::string::npos) << error;
  };
  expect_words(error_for("count", int8_t{0}), "value 'count' of the checkpoint is -300");
  expect_words(error_for("count", int8_t{0}), "does not fit");
  expect_words(error_for("count", unsigned{0}), "does not fit");
  expect_words(error_for("count", false), "of another kind");
  expect_words(error_for("count", std::string()), "of another kind");
  expect_words(error_for("count", std::vector<int>()), "a list is wanted");
  expect_words(error_for("order", 0), "a single value is wanted");
  expect_words(error_for("order", std::vector<std::string>()), "of another kind");
}

TEST(Checkpoint, APartThatIsNotThereIsNamedWhenItIsAdded) {
  const TemporaryDirectory directory;
  Checkpoint checkpoint(directory.path());
  int* none = nullptr;
  test::expect_error([&] { checkpoint.add("epoch", none); }, {"'epoch'", "null pointer"});
  test::expect_error([&] { checkpoint.add("own", std::shared_ptr<CheckpointPart>()); },
                     {"'own'", "null pointer"});
  test::expect_error([&] { checkpoint.add("t", at::Tensor()); }, {"'t'", "not defined"});
  test::expect_error([&] { checkpoint.add("t", at::eye(3).to_sparse()); }, {"'t'", "Sparse"});
}

struct OwnOptions : torch::optim::OptimizerCloneableOptions<OwnOptions> {
  explicit OwnOptions(double lr) : lr_(lr) {}
  double get_lr() const override { return lr_; }
  void set_lr(const double lr) override { lr_ = lr; }
  double lr_;
  bool is_signed = true;
};

struct OwnState : torch::optim::OptimizerCloneableParamState<OwnState> {
  int64_t steps = 0;
  at::Tensor average;
};

/// Without telling what it consists of.
class Untold : public torch::optim::Optimizer {
 public:
  Untold(const std::vector<torch::optim::OptimizerParamGroup>& groups, OwnOptions defaults)
      : Optimizer(groups, std::make_unique<OwnOptions>(defaults)) {}

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        auto& slot = state_[parameter.unsafeGetTensorImpl()];
        if (!parameter.grad().defined()) {
          continue;
        }
        if (!slot) {
          slot = std::make_unique<OwnState>();
          static_cast<OwnState&>(*slot).average = at::zeros_like(parameter);
        }
        auto& state = static_cast<OwnState&>(*slot);
        state.average.lerp_(parameter.grad(), 1.0 / static_cast<double>(++state.steps));
        const bool is_signed = static_cast<OwnOptions&>(group.options()).is_signed;
        parameter.sub_(is_signed ? state.average.sign() : state.average, group.options().get_lr());
      }
    }
    return {};
  }
  void save(torch::serialize::OutputArchive& /*archive*/) const override {}
  void load(torch::serialize::InputArchive& /*archive*/) override {}
};

class Own : public Untold, public OptimizerFields {
 public:
  using Untold::Untold;
  std::unique_ptr<torch::optim::OptimizerParamState> new_state() const override {
    return std::make_unique<OwnState>();
  }
  std::vector<StateField> state_fields(torch::optim::OptimizerParamState& state) const override {
    auto& own = static_cast<OwnState&>(state);
    return {{"step", nullptr, &own.steps}, {"average", &own.average}};
  }
  std::vector<OptionField> option_fields(torch::optim::OptimizerOptions& options) const override {
    auto& own = static_cast<OwnOptions&>(options);
    return {{"lr", &own.lr_}, {"is_signed", &own.is_signed}};
  }
};

TEST(Checkpoint, AnOptimizerOfOnesOwnGoesOnWithinAnOss) {
  const TemporaryDirectory directory;
  launch_threads(2, [&](Group group) {
    const auto run = [&](int64_t from, int64_t to) {
      auto model = test::make_model();
      OSS<Own> optimizer(group, *model, OwnOptions(from == 0 ? 0.1 : 7.0));
      ShardedDataParallel<torch::nn::Sequential> parallel(group, model, optimizer);
      Checkpoint checkpoint(group, directory.path());
      checkpoint.add("model", *model).add("optimizer", optimizer);
      TORCH_CHECK(from == 0 || checkpoint.load()->step == from, "not loaded");
      for (int64_t step = from; step < to; ++step) {
        static_cast<OwnOptions&>(optimizer.param_groups()[0].options()).is_signed = step < 2;
        optimizer.zero_grad();
        test::loss_of(parallel.forward(test::input(group.rank(), static_cast<int>(step))))
            .backward();
        optimizer.step();
        if (to == 6 && step == 2 && from == 0) {
          checkpoint.save(3);
        }
      }
      return test::values_of(*model);
    };
    const auto whole = run(0, 6);
    test::require_same(run(3, 6), whole, true);
    auto model = test::make_model();
    OSS<Untold> untold(group, *model, OwnOptions(0.1));
    Checkpoint checkpoint(group, directory.path());
    checkpoint.add("model", *model).add("optimizer", untold);
    test::expect_error([&] { checkpoint.save(9); },
                       {"OwnOptions", "derive the optimizer from fairshard::OptimizerFields"});
  });
}

TEST(Checkpoint, TimesThatNobodyCanWaitForAreNamed) {
  const TemporaryDirectory directory;
  const auto make = [&](const CheckpointOptions& options) {
    return [&directory, options] { Checkpoint checkpoint(directory.path(), options); };
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double seconds : {infinity, std::nan(""), 1e300, -1.0}) {
    expect_error(make(CheckpointOptions().timeout_s(seconds)), {"timeout_s is ", "at most"});
    expect_error(make(CheckpointOptions().linger_s(seconds)), {"linger_s is ", "from 0 to"});
  }
}

// It would come back rounded to a double.
static_assert(!CheckpointValue<long double>);
static_assert(!CheckpointValue<std::vector<long double>>);
static_assert(CheckpointValue<float> && CheckpointValue<double>);

TEST(Checkpoint, ARankThatIsNotInTheGroupIsRefused) {
  launch_threads(2, [](Group group) {
    const TemporaryDirectory directory;
    const Group one = group.subgroup({1});
    if (group.rank() == 0) {
      expect_error([&] { Checkpoint(one, directory.path()); }, {"not in the group"});
    }
  });
}

TEST(Checkpoint, ConjugatesAreSavedAsTheyAreSeen) {
  const TemporaryDirectory directory;
  const at::Tensor values = at::complex(at::ones({3}), at::ones({3})).conj();
  Checkpoint(directory.path()).add("values", values).save(1);
  const at::Tensor read = at::zeros({3}, at::kComplexFloat);
  Checkpoint(directory.path()).add("values", read).load();
  EXPECT_TRUE(read.equal(values));
}

TEST(Checkpoint, ScalersGoOn) {
  const TemporaryDirectory directory;
  launch_threads(2, [&](Group group) {
    ShardedGradScaler scaler(group, GradScalerOptions().init_scale(64).growth_interval(3));
    Linear layer(2, 2);
    torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.1));
    Checkpoint checkpoint(group, directory.path());
    checkpoint.add("scaler", scaler);
    const auto step = [&](ShardedGradScaler& with) {
      with.scale(layer->forward(at::ones({1, 2})).sum()).backward();
      with.step(optimizer);
      with.update();
    };
    step(scaler);
    step(scaler);
    checkpoint.save(2);
    ShardedGradScaler resumed(group, GradScalerOptions().growth_interval(3));
    Checkpoint again(group, directory.path());
    again.add("scaler", resumed);
    again.load();
    EXPECT_EQ(resumed.get_scale(), 64);
    step(resumed);
    EXPECT_EQ(resumed.get_scale(), 128);
  });
}

TEST(Checkpoint, WhatDoesNotFitIsNamed) {
  const TemporaryDirectory directory;
  torch::nn::Sequential model(Linear(3, 4), Linear(4, 2));
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  model->forward(at::ones({1, 3})).sum().backward();
  sgd.step();
  Checkpoint(directory.path()).add("model", *model).add("optimizer", sgd).save(1);

  torch::nn::Sequential longer(Linear(3, 4), Linear(4, 2), Linear(2, 2));
  Checkpoint to_longer(directory.path());
  to_longer.add("model", *longer);
  const auto before = test::values_of(*longer);
  expect_error([&] { to_longer.load(); }, {"missing: model/2.weight, model/2.bias"});
  test::require_same(test::values_of(*longer), before, true);
  EXPECT_EQ(to_longer.load(/*strict=*/false)->missing.size(), 2u);
  EXPECT_TRUE(longer->parameters()[0].equal(model->parameters()[0]));

  torch::nn::Sequential shorter(Linear(3, 4));
  Checkpoint to_shorter(directory.path());
  to_shorter.add("model", *shorter);
  expect_error([&] { to_shorter.load(); }, {"unexpected: model/1.bias, model/1.weight"});
  EXPECT_EQ(to_shorter.load(false)->unexpected.size(), 2u);

  torch::nn::Sequential wider(Linear(3, 5), Linear(5, 2));
  Checkpoint to_wider(directory.path());
  to_wider.add("model", *wider);
  expect_error([&] { to_wider.load(false); },
               {"model/0.weight has sizes [4, 3] instead of [5, 3]"});

  torch::nn::Sequential same(Linear(3, 4), Linear(4, 2));
  AdamW adam(same->parameters());
  Checkpoint to_adam(directory.path());
  to_adam.add("model", *same).add("optimizer", adam);
  expect_error([&] { to_adam.load(); }, {"unexpected: optimizer/0.bias/momentum_buffer"});

  expect_error([&] { to_adam.add("model", *same); }, {"'model'", "overlap"});
  expect_error([&] { to_adam.add("model/0", *same); }, {"'model/0'", "overlap"});
  torch::optim::LBFGS lbfgs(same->parameters());
  lbfgs.state()[same->parameters()[0].unsafeGetTensorImpl()] =
      std::make_unique<torch::optim::LBFGSParamState>();
  Checkpoint with_lbfgs(directory.path());
  with_lbfgs.add("lbfgs", lbfgs);
  expect_error([&] { with_lbfgs.save(2); }, {"do not know", "LBFGS"});
}

TEST(Checkpoint, OptionsOfGroupsComeBackAndNamesComeFromTheModule) {
  const TemporaryDirectory directory;
  Linear model(3, 4);
  const auto groups = [](Linear& of) {
    return std::vector<torch::optim::OptimizerParamGroup>{
        {{of->weight}, std::make_unique<torch::optim::AdamWOptions>(0.5)},
        torch::optim::OptimizerParamGroup({of->bias})};
  };
  AdamW optimizer(groups(model), torch::optim::AdamWOptions(0.1).betas({0.5, 0.6}));
  model->forward(at::ones({1, 3})).sum().backward();
  optimizer.step();
  Checkpoint(directory.path()).add("model", *model).add("optimizer", optimizer).save(1);
  Linear other(3, 4);
  AdamW resumed(groups(other), torch::optim::AdamWOptions(7));
  resumed.param_groups()[0].options().set_lr(9);
  Checkpoint(directory.path()).add("model", *other).add("optimizer", resumed).load();
  const auto& options =
      static_cast<const torch::optim::AdamWOptions&>(resumed.param_groups()[1].options());
  EXPECT_EQ(resumed.param_groups()[0].options().get_lr(), 0.5);
  EXPECT_EQ(options.lr(), 0.1);
  EXPECT_EQ(options.betas(), std::tuple(0.5, 0.6));
  store::Reader reader(directory.path() + "/step-00000001");
  EXPECT_TRUE(reader.has("optimizer/weight/exp_avg"));
  EXPECT_TRUE(reader.has("optimizer/bias/step"));
}

TEST(Checkpoint, AnAsynchronousSaveDoesNotSeeLaterSteps) {
  const TemporaryDirectory directory;
  launch_threads(2, [&](Group group) {
    auto model = test::make_model();
    OSS<AdamW> optimizer(group, *model, torch::optim::AdamWOptions(0.1), test::kSmallBuckets);
    ShardedDataParallel<torch::nn::Sequential> parallel(group, model, optimizer);
    Checkpoint checkpoint(group, directory.path(), CheckpointOptions().keep(2));
    checkpoint.add("model", *model).add("optimizer", optimizer);
    test::Values saved;
    for (int step = 0; step < 6; ++step) {
      test::loss_of(parallel.forward(test::input(group.rank(), step))).backward();
      optimizer.step();
      saved = step == 4 ? test::values_of(*model) : saved;
      if (step < 5) {
        checkpoint.save_async(step);
      }
    }
    checkpoint.wait();
    EXPECT_EQ(checkpoint.load()->step, 4);
    test::require_same(test::values_of(*model), saved, true);
  });
}

TEST(Checkpoint, AnAdaScaleGoesOnWithItsMeans) {
  const TemporaryDirectory directory;
  launch_threads(2, [&](Group group) {
    using Optimizer = AdaScale<OSS<SGD>>;
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
    const auto train = [&](auto& parallel, Optimizer& optimizer, int step) {
      optimizer.zero_grad();
      test::loss_of(parallel.forward(test::input(group.rank(), step))).backward();
      optimizer.step();
      return optimizer.gain();
    };
    auto model = test::make_model();
    Optimizer optimizer(group, AdaScaleOptions(), group, *model, options);
    ShardedDataParallel<torch::nn::Sequential> parallel(group, model, optimizer);
    auto twin = test::make_model(3);
    Optimizer resumed(group, AdaScaleOptions(), group, *twin, options);
    ShardedDataParallel<torch::nn::Sequential> twin_parallel(group, twin, resumed);

    Checkpoint checkpoint(group, directory.path());
    checkpoint.add("model", *model).add("optimizer", optimizer);
    train(parallel, optimizer, 0);
    train(parallel, optimizer, 1);
    checkpoint.save(2);
    Checkpoint other(group, directory.path());
    other.add("model", *twin).add("optimizer", resumed);
    TORCH_CHECK(other.load()->step == 2);
    TORCH_CHECK(resumed.meter().effective_steps().equal(optimizer.meter().effective_steps()));
    for (int step = 2; step < 5; ++step) {
      TORCH_CHECK(train(parallel, optimizer, step) == train(twin_parallel, resumed, step));
    }
    test::require_same(test::values_of(*model), test::values_of(*twin), true);
  });
}

TEST(Checkpoint, NodesThatTrainApartGoOnApart) {
  const TemporaryDirectory directory;
  launch_threads(4, [&](Group group) {
    using Parallel = SlowMoDistributedDataParallel<torch::nn::Sequential>;
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
    const auto slowmo = SlowMoOptions().outer(
        outer::OuterOptions().momentum(0.4).slow_frequency(4).average_frequency(4));
    const auto train = [&](Parallel& parallel, torch::optim::SGD& optimizer, int first, int last) {
      for (int step = first; step < last; ++step) {
        optimizer.zero_grad();
        test::loss_of(parallel.forward(test::input(group.rank(), step))).backward();
        optimizer.step();
        parallel.perform_slowmo(optimizer);
      }
    };
    auto model = test::make_model();
    torch::optim::SGD optimizer(model->parameters(), options);
    Parallel parallel(group, model, 2, slowmo);
    auto twin = test::make_model(3);
    torch::optim::SGD resumed(twin->parameters(), options);
    Parallel twin_parallel(group, twin, 2, slowmo);

    train(parallel, optimizer, 0, 6);  // two steps after a slow one: nodes differ
    Checkpoint checkpoint(group, directory.path());
    checkpoint.add("model", *model).add("optimizer", optimizer).add("slowmo", parallel);
    checkpoint.save(6);
    Checkpoint other(group, directory.path());
    other.add("model", *twin).add("optimizer", resumed).add("slowmo", twin_parallel);
    other.load();
    test::require_same(test::values_of(*twin), test::values_of(*model), true);
    train(parallel, optimizer, 6, 11);
    train(twin_parallel, resumed, 6, 11);
    test::require_same(test::values_of(*twin), test::values_of(*model), true);
    parallel.average_parameters();
    twin_parallel.average_parameters();
  });
}

}  // namespace parts_test
}  // namespace fairshard

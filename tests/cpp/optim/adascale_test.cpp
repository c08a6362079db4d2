// AdaScale against its formula, written out on gradients that plain autograd gives.
#include "support/expect_error.h"
#include "support/training.h"
#include <fairshard/optim/adascale.h>
#include <fairshard/optim/grad_scaler.h>
#include <fairshard/optim/schedule.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sstream>

namespace fairshard {
namespace adascale_test {

using comm::Group;
using comm::launch_threads;
using scale::GainMeterOptions;
using torch::nn::Sequential;
using torch::optim::SGDOptions;
using Mode = DataParallelMode;
using test::Values;

/// The paper's estimates from the gradients g_1 ... g_n of equal parts of a batch, with means.
class Reference {
 public:
  explicit Reference(double scale) : scale_(scale), keep_(std::max(1 - scale / 1000, 0.0)) {}

  double gain(const std::vector<at::Tensor>& gradients) {
    const auto n = static_cast<double>(gradients.size());
    const at::Tensor all = at::stack(gradients).to(at::kDouble);
    const double square = all.mean(0).square().sum().item<double>();
    const double sum = all.square().sum().item<double>();
    const double variance = scale_ / n * (sum - n * square) / (n - 1);
    weight_ = keep_ * weight_ + 1 - keep_;
    variance_ = keep_ * variance_ + (1 - keep_) * std::max(variance, 1e-6);
    square_ = keep_ * square_ + (1 - keep_) * std::max(square - variance / scale_, 0.0);
    const double v = variance_ / weight_;
    const double s = square_ / weight_;
    return (v + s) / (v / scale_ + s);
  }

 private:
  double scale_;
  double keep_;
  double weight_ = 0;
  double variance_ = 0;
  double square_ = 0;
};

at::Tensor flat_gradient(Sequential& model, const at::Tensor& x) {
  model->zero_grad();
  test::loss_of(model->forward(x)).backward();
  std::vector<at::Tensor> pieces;
  for (const auto& parameter : model->parameters()) {
    pieces.push_back(parameter.grad().flatten());
  }
  return at::cat(pieces);
}

/// The gains of some steps of plain SGD, in one process, with `parts` parts of every batch.
std::vector<double> reference_gains(int parts, int steps, double rate) {
  auto model = test::make_model();
  Reference reference(parts);
  std::vector<double> gains;
  for (int step = 0; step < steps; ++step) {
    std::vector<at::Tensor> gradients;
    for (int part = 0; part < parts; ++part) {
      gradients.push_back(flat_gradient(model, test::input(part, step)));
    }
    gains.push_back(reference.gain(gradients));
    const at::NoGradGuard no_grad;
    const at::Tensor mean = at::stack(gradients).mean(0);
    int64_t offset = 0;
    for (auto& parameter : model->parameters()) {
      const at::Tensor piece = mean.slice(0, offset, offset + parameter.numel());
      parameter.sub_(piece.view_as(parameter), rate * gains.back());
      offset += parameter.numel();
    }
  }
  return gains;
}

constexpr int kGainSteps = 8;
constexpr double kRate = 0.1;

void expect_near(const std::vector<double>& ours, const std::vector<double>& theirs) {
  TORCH_CHECK(ours.size() == theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    TORCH_CHECK(std::abs(ours[i] - theirs[i]) < 1e-5, "step ", i, ": ", ours[i], " and ",
                theirs[i]);
  }
}

struct Accumulation {
  int64_t passes = 1;
  bool is_scaled_loss = true;
  bool uses_no_sync = false;
};

/// Parts of a batch are dealt out to ranks and then to backward passes.
template <typename Optimizer, typename Parallel>
std::vector<double> train(Group group, Optimizer& optimizer, Parallel& parallel,
                          const Accumulation& accumulation = {}) {
  std::vector<double> gains;
  for (int step = 0; step < kGainSteps; ++step) {
    optimizer.zero_grad();
    for (int64_t pass = 0; pass < accumulation.passes; ++pass) {
      const int part = group.rank() + group.size() * static_cast<int>(pass);
      const bool is_last = pass + 1 == accumulation.passes;
      const auto guard = accumulation.uses_no_sync && !is_last
                             ? std::make_unique<DataParallelBase::NoSync>(parallel)
                             : nullptr;
      at::Tensor loss = test::loss_of(parallel.forward(test::input(part, step)));
      if (accumulation.is_scaled_loss) {
        loss = loss / static_cast<double>(accumulation.passes);
      }
      loss.backward();
    }
    gains.push_back(optimizer.gain());
    if (!accumulation.is_scaled_loss) {
      optimizer.scale_grad_by_num_grads_to_accum();
    }
    optimizer.step();
  }
  return gains;
}

AdaScaleOptions options_of(const Accumulation& accumulation) {
  return AdaScaleOptions().gain(GainMeterOptions()
                                    .accumulation(accumulation.passes)
                                    .is_scaled_loss(accumulation.is_scaled_loss));
}

std::vector<double> sharded_gains(Group group, Mode mode, const Accumulation& accumulation = {}) {
  auto model = test::make_model();
  AdaScale<OSS<SGD>> optimizer(group, options_of(accumulation), group, *model, SGDOptions(kRate),
                               test::kSmallBuckets);
  ShardedDataParallel<Sequential> parallel(group, model, optimizer,
                                           DataParallelOptions().mode(mode));
  return train(group, optimizer, parallel, accumulation);
}

std::vector<double> replicated_gains(Group group, const Accumulation& accumulation = {}) {
  auto model = test::make_model();
  ShardedDataParallel<Sequential> parallel(group, model);
  AdaScale<torch::optim::SGD> optimizer(group, options_of(accumulation), model->parameters(),
                                        SGDOptions(kRate));
  return train(group, optimizer, parallel, accumulation);
}

TEST(AdaScale, GainsFollowTheFormulaInEveryMode) {
  for (const int ranks : {2, 3}) {
    const auto expected = reference_gains(ranks, kGainSteps, kRate);
    launch_threads(ranks, [&](Group group) {
      expect_near(sharded_gains(group, Mode::kGradients), expected);
      expect_near(sharded_gains(group, Mode::kOptimizer), expected);
      expect_near(replicated_gains(group), expected);
    });
  }
}

TEST(AdaScale, RanksTimesAccumulationAreMoreRanks) {
  const auto expected = reference_gains(4, kGainSteps, kRate);
  launch_threads(2, [&](Group group) {
    for (const bool is_scaled_loss : {true, false}) {
      for (const bool uses_no_sync : {true, false}) {
        const Accumulation accumulation{2, is_scaled_loss, uses_no_sync};
        expect_near(sharded_gains(group, Mode::kGradients, accumulation), expected);
        expect_near(replicated_gains(group, accumulation), expected);
      }
    }
  });
  launch_threads(1, [&](Group group) {
    expect_near(sharded_gains(group, Mode::kGradients, {4}), expected);
    expect_near(replicated_gains(group, {4}), expected);
  });
}

/// The gains that are known for two ranks, torch::nn::Linear(2, 2) and the sum of the outputs.
TEST(AdaScale, KnownGains) {
  struct Case {
    std::vector<float> first;
    std::vector<float> second;
    double gain;
  };
  for (const Case& known : {Case{{1, 0}, {0, 1}, 4.0 / 3}, Case{{1, 1}, {1, 1}, 1.0000001249999846},
                            Case{{-1, 1}, {1, -1}, 2.0}}) {
    launch_threads(2, [&](Group group) {
      const at::Tensor x = at::tensor(group.rank() == 0 ? known.first : known.second);
      Sequential model(torch::nn::Linear(2, 2));
      AdaScale<OSS<SGD>> optimizer(group, AdaScaleOptions(), group, *model, SGDOptions(kRate));
      ShardedDataParallel<Sequential> parallel(group, model, optimizer);
      parallel.forward(x).sum().backward();
      TORCH_CHECK(std::abs(optimizer.gain() - known.gain) < 1e-6, optimizer.gain());
      optimizer.step();
      TORCH_CHECK(std::abs(optimizer.gain(0) - known.gain) < 1e-6, optimizer.gain(0));
      TORCH_CHECK(optimizer.effective_steps() == static_cast<int64_t>(known.gain));
    });
  }
}

TEST(AdaScale, AdamTakesTheSquareRoot) {
  launch_threads(2, [](Group group) {
    auto model = test::make_model();
    auto twin = test::make_model();
    AdaScale<OSS<AdamW>> optimizer(group, AdaScaleOptions(), group, *model,
                                   torch::optim::AdamWOptions(1e-2));
    OSS<AdamW> plain(group, *twin, torch::optim::AdamWOptions(1e-2));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    ShardedDataParallel<Sequential> plain_parallel(group, twin, plain);
    test::loss_of(parallel.forward(test::input(group.rank(), 0))).backward();
    test::loss_of(plain_parallel.forward(test::input(group.rank(), 0))).backward();
    TORCH_CHECK(optimizer.gain() > 1.01, "the test wants a gain, but has ", optimizer.gain());
    plain.param_groups()[0].options().set_lr(1e-2 * std::sqrt(optimizer.gain()));
    optimizer.step();
    plain.step();
    test::require_same(test::values_of(*model), test::values_of(*twin), true);
    TORCH_CHECK(optimizer.param_groups()[0].options().get_lr() == 1e-2);
  });
}

TEST(AdaScale, SkippedStepsAndScaledLossesChangeNothing) {
  const auto expected = reference_gains(2, kGainSteps, kRate);
  launch_threads(2, [&](Group group) {
    auto model = test::make_model();
    AdaScale<OSS<SGD>> optimizer(group, AdaScaleOptions(), group, *model, SGDOptions(kRate));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    ShardedGradScaler scaler(group, GradScalerOptions().init_scale(1024).growth_interval(3));
    std::vector<double> gains;
    for (int step = 0; step < kGainSteps; ++step) {
      for (const bool is_spoilt : {true, false}) {
        optimizer.zero_grad();
        at::Tensor loss = test::loss_of(parallel.forward(test::input(group.rank(), step)));
        if (is_spoilt && group.rank() == step % 2) {
          loss = loss * std::numeric_limits<float>::infinity();
        }
        scaler.scale(loss).backward();
        TORCH_CHECK(scaler.step(optimizer) != is_spoilt);
        scaler.update();
      }
      gains.push_back(optimizer.gain());
    }
    expect_near(gains, expected);
  });
}

TEST(AdaScale, ClippingDoesNotChangeTheGain) {
  launch_threads(2, [](Group group) {
    auto model = test::make_model();
    AdaScale<OSS<SGD>> optimizer(group, AdaScaleOptions(), group, *model, SGDOptions(kRate));
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    test::loss_of(parallel.forward(test::input(group.rank(), 0))).backward();
    const double gain = optimizer.gain();
    optimizer.clip_grad_norm(1e-3);
    optimizer.step();
    TORCH_CHECK(optimizer.gain() == gain);
  });
}

TEST(AdaScale, GroupsHaveTheirOwnGainsAlsoLaterOnes) {
  launch_threads(2, [](Group group) {
    Sequential model(torch::nn::Linear(2, 2), torch::nn::Linear(2, 1));
    const auto all = model->parameters();
    AdaScale<torch::optim::SGD> optimizer(
        group, AdaScaleOptions(), std::vector<at::Tensor>{all[0], all[1]}, SGDOptions(kRate));
    ShardedDataParallel<Sequential> parallel(group, model);
    const at::Tensor x = group.rank() == 0 ? at::tensor({1.0F, 0.0F}) : at::tensor({0.0F, 1.0F});
    parallel.forward(x).sum().backward();
    optimizer.step();
    const double first = optimizer.gain(0);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({all[2], all[3]}));
    TORCH_CHECK(optimizer.gain(1) == 1);
    optimizer.zero_grad();
    parallel.forward(at::ones({2})).sum().backward();  // no noise
    optimizer.step();
    TORCH_CHECK(optimizer.gain(0) > 1.01 && optimizer.gain(0) < first);
    TORCH_CHECK(std::abs(optimizer.gain(1) - 1) < 1e-4, optimizer.gain(1));
  });
}

TEST(AdaScale, MeansGoOnWhereTheyWere) {
  const auto expected = reference_gains(2, 2, kRate);
  launch_threads(2, [&](Group group) {
    auto model = test::make_model();
    const auto step_of = [&](auto& optimizer, auto& parallel, int step) {
      optimizer.zero_grad();
      test::loss_of(parallel.forward(test::input(group.rank(), step))).backward();
      optimizer.step();
    };
    AdaScale<torch::optim::SGD> first(group, AdaScaleOptions(), model->parameters(),
                                      SGDOptions(kRate));
    ShardedDataParallel<Sequential> parallel(group, model);
    step_of(first, parallel, 0);
    const auto [means, steps] = first.meter().state();
    first.unhook();
    AdaScale<torch::optim::SGD> second(group, AdaScaleOptions(), model->parameters(),
                                       SGDOptions(kRate));
    second.meter().load(means, steps);
    step_of(second, parallel, 1);
    expect_near({first.gain(), second.gain()}, expected);
    TORCH_CHECK(second.effective_steps() ==
                static_cast<int64_t>(std::floor(expected[0] + expected[1])));
    // torch's own archives have them, too
    std::stringstream stream;
    torch::save(second, stream);
    second.unhook();
    AdaScale<torch::optim::SGD> third(group, AdaScaleOptions(), model->parameters(),
                                      SGDOptions(1.0));
    torch::load(third, stream);
    TORCH_CHECK(third.gain() == second.gain() &&
                third.effective_steps() == second.effective_steps());
    test::expect_error([&] { second.meter().load(at::zeros({3, 2}), steps); },
                       {"the state is that of 2 parameter groups, but there are 1"});
  });
}

TEST(AdaScale, ScheduleFollowsEffectiveSteps) {
  launch_threads(1, [](Group) {
    Sequential model(torch::nn::Linear(1, 1));
    AdaScale<torch::optim::SGD> optimizer(
        std::nullopt, AdaScaleOptions().gain(GainMeterOptions().accumulation(2)),
        model->parameters(), SGDOptions(kRate));
    LearningRate rate(optimizer, step_schedule(2, 0.5));
    for (const float x : {-1.0F, 1.0F}) {
      // The weight's gradients are equal, the bias's opposite, so that one half is noise.
      (model->forward(at::full({1, 1}, x)) * x / 2).sum().backward();
    }
    optimizer.step();
    rate.set_steps(optimizer.effective_steps());
    TORCH_CHECK(optimizer.effective_steps() == 2, optimizer.effective_steps());
    TORCH_CHECK(rate.rate() == kRate / 2, rate.rate());
  });
}

TEST(AdaScale, BadInputIsNamed) {
  launch_threads(1, [](Group group) {
    auto model = test::make_model();
    const auto make = [&](const GainMeterOptions& options) {
      AdaScale<torch::optim::SGD> optimizer(group, AdaScaleOptions().gain(options),
                                            model->parameters(), SGDOptions(kRate));
    };
    test::expect_error([&] { make(GainMeterOptions()); }, {"has nothing to compare"});
    test::expect_error([&] { make(GainMeterOptions().accumulation(0)); }, {"is 0, but must be"});
    test::expect_error([&] { make(GainMeterOptions().accumulation(2).scale(0.5)); },
                       {"the scale is 0.5, but must be at least 1"});
    test::expect_error([&] { make(GainMeterOptions().accumulation(2).smoothing(1)); },
                       {"the smoothing is 1, but must be"});
    AdaScale<torch::optim::SGD> optimizer(
        group, AdaScaleOptions().gain(GainMeterOptions().accumulation(2)), model->parameters(),
        SGDOptions(kRate));
    test::expect_error([&] { optimizer.step(); }, {"needs 2 backward passes", "there were 0"});
    test::loss_of(model->forward(test::input(0, 0))).backward();
    test::expect_error([&] { optimizer.step(); }, {"needs 2 backward passes", "there were 1"});
    test::loss_of(model->forward(test::input(0, 1))).backward();
    optimizer.step();
    test::expect_error([&] { optimizer.step([] { return at::zeros({}); }); },
                       {"needs 2 backward passes", "there were 0"});
  });
}

TEST(AdaScale, AGroupThatWasAddedBehindItsBackIsRefused) {
  test::run_ranks(2, [](Group group) {
    auto model = test::make_model();
    const auto parameters = model->parameters();
    AdaScale<torch::optim::SGD> optimizer(group, AdaScaleOptions(), Values{parameters[0]},
                                          SGDOptions(0.1));
    torch::optim::Optimizer& plain = optimizer;
    plain.add_param_group(torch::optim::OptimizerParamGroup(Values{parameters[1]}));
    ShardedDataParallel<Sequential> parallel(group, model);
    test::loss_of(parallel.forward(test::input(group.rank(), 0))).backward();
    test::expect_error([&] { optimizer.step(); }, {"1 parameter group", "has 2", "own"});
  });
}

}  // namespace adascale_test
}  // namespace fairshard

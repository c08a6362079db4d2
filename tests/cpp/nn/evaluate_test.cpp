// Means over ranks with batches of all sizes, and averaged weights.
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/training.h"
#include <fairshard/checkpoint.h>
#include <fairshard/nn/ema.h>
#include <fairshard/nn/evaluate.h>
#include <fairshard/optim/fused.h>

#include <gtest/gtest.h>

namespace fairshard {
namespace evaluate_test {

using comm::Group;
using comm::launch_threads;
using test::input;
using test::loss_of;
using test::make_model;
using test::Values;
using test::values_of;
using torch::nn::Sequential;

TEST(Evaluate, TheMeanIsThatOfAllSamplesWhateverRanksHave) {
  launch_threads(3, [](Group group) {
    auto model = make_model();
    model->push_back(torch::nn::Dropout(0.5));
    model[0]->eval();             // as somebody may have frozen a BatchNorm
    std::vector<at::Tensor> own;  // none, one, two; the last one is smaller
    for (int i = 0; i < group.rank(); ++i) {
      own.push_back(input(group.rank(), i).slice(0, 0, 6 - group.rank() * i));
    }
    const auto weighted = [&](const at::Tensor& batch) {
      TORCH_CHECK(!at::GradMode::is_enabled() && !model->is_training(), "it does not evaluate");
      return comm::Weighted(loss_of(model->forward(batch)).item<double>(),
                            static_cast<double>(batch.size(0)));
    };
    const double ours = evaluate(group, model, own, weighted);
    TORCH_CHECK(model->is_training() && !model[0]->is_training() && model[1]->is_training(),
                "the modules are not as they were");
    model->eval();
    const at::Tensor all = at::cat({input(1, 0), input(2, 0), input(2, 1).slice(0, 0, 4)});
    const auto plain = loss_of(model->forward(all)).item<double>();
    TORCH_CHECK(std::abs(ours - plain) < 1e-6, ours, " is not ", plain);
    const double counted = evaluate(group, *model, own, [](const at::Tensor&) { return 1.0; });
    TORCH_CHECK(counted == 1, "plain numbers give ", counted);
  });
}

TEST(Ema, ItIsTheAverageOfTheWeightsInAllModes) {
  const auto with = [](auto change) {
    OssOptions options = test::kSmallBuckets;
    change(options);
    return options;
  };
  const std::vector<OssOptions> all{
      test::kSmallBuckets, with([](auto& o) { o.overlap_gather(true); }),
      with([](auto& o) { o.release_parameters(true); }), with([](auto& o) {
        o.overlap_gather(true).step_in_backward(true).release_parameters(true);
      })};
  for (const OssOptions& options : all) {
    launch_threads(2, [&](Group group) {
      auto model = make_model();
      OSS<AdamW> optimizer(group, model, torch::optim::AdamWOptions(0.1), options);
      ShardedDataParallel<Sequential> parallel(group, model, optimizer);
      Ema ema(model, EmaOptions().decay(0.75));
      Values expected = values_of(*model);
      for (int step = 0; step < 5; ++step) {
        optimizer.zero_grad();
        loss_of(parallel.forward(input(group.rank(), step))).backward();
        optimizer.step();
        ema.update();
        const Values now = values_of(*model);
        for (size_t i = 0; i < expected.size(); ++i) {
          expected[i].lerp_(now[i], 0.25);
        }
      }
      Values averages;
      for (const auto& [name, average] : ema.averages()) {
        averages.push_back(average);
      }
      test::require_same(averages, expected, true);
      auto other = make_model(5);
      ema.copy_to(other);
      test::require_same(values_of(*other), expected, true);
      if (options.release_parameters()) {
        test::expect_error([&] { const auto applied = ema.apply(); },
                           {"release_parameters", "copy_to()"});
        return;
      }
      const Values before = values_of(*model);
      const auto version = model->parameters()[0]._version();
      {
        const auto applied = ema.apply();
        test::require_same(values_of(*model), expected, true);
        test::expect_error([&] { const auto applied = ema.apply(); }, {"applied already"});
        test::expect_error([&] { ema.update(); }, {"in place of its weights"});
      }
      test::require_same(values_of(*model), before, true);
      TORCH_CHECK(model->parameters()[0]._version() == version, "the versions have moved");
    });
  }
}

TEST(Ema, LowPrecisionIsAveragedInFloatAndMasterWeightsStay) {
  launch_threads(2, [](Group group) {
    auto model = make_model();
    auto twin = make_model();
    model->to(at::kBFloat16);
    twin->to(at::kBFloat16);
    const auto options = OssOptions().master_weights(true);
    OSS<AdamW> optimizer(group, model, torch::optim::AdamWOptions(0.01), options);
    OSS<AdamW> plain(group, twin, torch::optim::AdamWOptions(0.01), options);
    ShardedDataParallel<Sequential> parallel(group, model, optimizer);
    ShardedDataParallel<Sequential> alone(group, twin, plain);
    Ema ema(model);
    TORCH_CHECK(ema.averages()[0].second.scalar_type() == at::kFloat, "not float");
    for (int step = 0; step < 4; ++step) {
      const at::Tensor x = input(group.rank(), step).to(at::kBFloat16);
      loss_of(parallel.forward(x)).backward();
      loss_of(alone.forward(x)).backward();
      optimizer.step();
      plain.step();
      ema.update();
      const auto applied = ema.apply();  // whose end must not round the master weights
    }
    test::require_same(values_of(*model), values_of(*twin), true);
  });
}

TEST(Ema, ACheckpointHasIt) {
  const test::TemporaryDirectory folder;
  auto model = make_model();
  Ema ema(model, EmaOptions().decay(0.5).warmup(true));
  const auto change = [&] {
    const at::NoGradGuard no_grad;
    model->parameters()[0].add_(1);
  };
  change();
  ema.update();
  Checkpoint(folder.path()).add("ema", ema).save(1);
  change();
  ema.update();
  const at::Tensor whole = ema.averages()[0].second.clone();
  Ema resumed(model, EmaOptions().decay(0.5).warmup(true));
  Checkpoint(folder.path()).add("ema", resumed).load();
  EXPECT_EQ(resumed.updates(), 1);
  resumed.update();
  EXPECT_TRUE(resumed.averages()[0].second.equal(whole));
  Checkpoint both(folder.path());
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  loss_of(model->forward(input(0, 0))).backward();
  optimizer.step();
  both.add("model", *model).add("ema", ema).add("optimizer", optimizer);
  both.save(2);
  Checkpoint without(folder.path());  // names of the optimizer's states do not depend on it
  without.add("model", *model).add("optimizer", optimizer);
  const auto report = without.load();
  EXPECT_TRUE(report->missing.empty());
  test::expect_error([&] { Ema bad(model, EmaOptions().decay(1)); }, {"decay is 1"});
}

}  // namespace evaluate_test
}  // namespace fairshard

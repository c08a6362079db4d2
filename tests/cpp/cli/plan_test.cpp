// The planner's predictions, against the library's own layout and the model itself.
#include "gpt/model.h"
#include "plan/gpt_step.h"
#include "plan/layout.h"
#include "plan/model_shape.h"
#include "plan/predict.h"
#include "support/expect_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace fairshard::cli::planning {
namespace plan_test {

gpt::GptOptions small_gpt() { return gpt::GptOptions().layers(3).width(48).heads(4).context(32); }

/// Where gradients vanish.
class NoSink final : public GradientSink {
 public:
  explicit NoSink(MemoryLedger& ledger) : ledger_(ledger) {}
  void take_gradient(size_t parameter, int64_t bytes) override {
    seen.push_back(parameter);
    ledger_.give(bytes);
  }
  std::vector<size_t> seen;

 private:
  MemoryLedger& ledger_;
};

TEST(ModelShape, IsThatOfTheModel) {
  const auto shape = shape_of_gpt("small", small_gpt());
  const gpt::Gpt model(small_gpt());
  const auto parameters = model->named_parameters();
  ASSERT_EQ(shape.parameters.size(), parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_EQ(shape.parameters[i].name, parameters[i].key());
    EXPECT_EQ(shape.parameters[i].numel, parameters[i].value().numel());
  }
  EXPECT_EQ(shape.parameters[first_of_layer(2)].name, "block2.attention_norm.weight");
  EXPECT_EQ(shape.blocks.size(), 5u);
}

TEST(ModelShape, OfACountHasAllOfIt) {
  for (const int64_t count : {1, 7, 99, 100, 12345678}) {
    EXPECT_EQ(shape_of_count(count).parameter_count(), count);
  }
}

TEST(ModelShape, OfAPathThatIsNotThere) {
  test::expect_error([] { shape_of_path("/nonexistent/model.safetensors"); },
                     {"/nonexistent/model.safetensors"});
}

TEST(GptStep, FreesAllThatItTakes) {
  for (const bool is_mixed : {false, true}) {
    for (const std::vector<int64_t>& together :
         {std::vector<int64_t>{-1, -1, -1, -1, -1}, {-1, 1, 2, 3, -1}, {0, 0, 1, 1, 2}}) {
      MemoryLedger ledger;
      NoSink sink(ledger);
      GptStep step({small_gpt(), 4, is_mixed, together}, ledger);
      step.run(sink);
      EXPECT_EQ(ledger.now(), 0);
      EXPECT_GT(ledger.peak(), 0);
      // Every parameter has one gradient.
      std::sort(sink.seen.begin(), sink.seen.end());
      EXPECT_EQ(sink.seen.size(), shape_of_gpt("", small_gpt()).parameters.size());
      EXPECT_EQ(std::adjacent_find(sink.seen.begin(), sink.seen.end()), sink.seen.end());
    }
  }
}

/// Saved tensors, counted with autograd's own hooks for this model: 16 times the residual stream
/// per layer, two statistics for each token and norm, and a sum for each token and head.
TEST(GptStep, KeepsWhatAutogradKeeps) {
  const auto options = small_gpt();
  const int64_t windows = 64;  // so many that activations are all that counts
  const int64_t tokens = windows * options.context();
  const int64_t stream = tokens * options.width() * 4;
  const int64_t kept =
      options.layers() * (16 * stream + 4 * tokens * 4 + options.heads() * tokens * 4);
  MemoryLedger ledger;
  NoSink sink(ledger);
  GptStep({options, windows, false, std::vector<int64_t>(5, -1)}, ledger).run(sink);
  const int64_t logits = tokens * options.vocabulary() * 4;
  EXPECT_GT(ledger.peak(), kept + 3 * logits);
  EXPECT_LT(ledger.peak(), kept + 3 * logits + 4 * stream);
}

TEST(GptStep, RecomputationAndLowPrecisionSaveMemory) {
  const auto peak = [](bool is_mixed, const std::vector<int64_t>& together) {
    MemoryLedger ledger;
    NoSink sink(ledger);
    GptStep({small_gpt().layers(8), 16, is_mixed, together}, ledger).run(sink);
    return ledger.peak();
  };
  const std::vector<int64_t> none(10, -1);
  const std::vector<int64_t> layers{-1, 1, 2, 3, 4, 5, 6, 7, 8, -1};
  EXPECT_LT(peak(false, layers), peak(false, none) / 2);
  EXPECT_LT(peak(true, none), peak(false, none));
}

TEST(BucketLayout, LargeModelsHaveTheLibrarysBucketsAndSmallOnesSmallOnes) {
  const auto largest = [](int64_t count, Sharding sharding) {
    int64_t bytes = 0;
    const auto plan = bucket_layout(shape_of_count(count), sharding, 2);
    for (const auto& bucket : plan.buckets()) {
      bytes = std::max(bytes, 4 * bucket.length());
    }
    return bytes;
  };
  for (const Sharding sharding : {Sharding::kNone, Sharding::kGradients}) {
    EXPECT_LE(largest(1000000, sharding), 256 << 10);
    EXPECT_LE(largest(100000000, sharding), 25 << 20);
    EXPECT_GT(largest(100000000, sharding), 16 << 20);
  }
}

TEST(PredictMemory, IsThatOfThePlan) {
  const auto model = shape_of_gpt("small", small_gpt());
  for (const int ranks : {1, 2, 3, 8}) {
    const Workload workload{ranks, 24, true};
    const auto plan = bucket_layout(model, Sharding::kGradients, ranks);
    int64_t padded = 0;
    for (const auto& bucket : plan.buckets()) {
      padded += 4 * bucket.length();
    }
    const auto memory = predict_memory(model, {Sharding::kGradients}, workload);
    EXPECT_EQ(memory.weights, padded);
    EXPECT_EQ(memory.gradients, padded / ranks);
    EXPECT_GE(ranks * memory.optimizer, 8 * model.parameter_count());
    EXPECT_LE(memory.optimizer, 2 * padded / ranks);
    const auto whole = predict_memory(model, {Sharding::kNone}, workload);
    EXPECT_EQ(whole.optimizer, 8 * model.parameter_count());
    EXPECT_EQ(whole.gradients, whole.weights);
    EXPECT_EQ(whole.buckets, 0);
  }
}

TEST(PredictMemory, OfAPagedModelIsASlotOrThree) {
  const auto model = shape_of_gpt("large", small_gpt().layers(12));
  const auto whole = page_layout(model, 1);
  const auto pages = page_layout(model, 14);
  EXPECT_GE(whole.device_bytes, 4 * model.parameter_count());
  EXPECT_LT(pages.device_bytes, whole.device_bytes / 2);
  EXPECT_EQ(pages.host_bytes, whole.host_bytes);
  EXPECT_EQ(pages.slice_of_parameter[kTokenEmbedding], -1);  // both ends use it
}

TEST(PredictSentBytes, FollowsTheFormulas) {
  const auto model = shape_of_count(1000000);
  const Workload workload{4, 8, false};
  EXPECT_EQ(predict_sent_bytes(model, {Sharding::kNone}, workload), 6000000);
  EXPECT_EQ(predict_sent_bytes(model, {Sharding::kOptimizer}, workload), 9000000);
  EXPECT_EQ(predict_sent_bytes(model, {Sharding::kGradients}, workload), 6000000);
  EXPECT_EQ(predict_sent_bytes(model, {Sharding::kNone}, {1, 8, false}), 0);
}

TEST(PredictTime, BackwardHidesTheLinkIfItIsFast) {
  const auto model = shape_of_count(1000000000);
  const Workload workload{8, 64, false};
  Machine machine{1e12, 1e14, 1e10, 1e11, 1e9};
  const auto fast = predict_time(model, {Sharding::kNone}, workload, machine, 1024);
  EXPECT_EQ(fast.link_s, 0);
  machine.link_bytes_per_s = 1e6;
  const auto slow = predict_time(model, {Sharding::kNone}, workload, machine, 1024);
  EXPECT_GT(slow.link_s, 0.9 * 2 * 4e9 * 7 / 8 / 1e6);
  EXPECT_GT(predict_time(model, {Sharding::kOptimizer}, workload, machine, 1024).step_s,
            slow.step_s);
  EXPECT_GT(predict_time(model, {Sharding::kNone, 0, true}, workload, machine, 1024).compute_s,
            1.3 * slow.compute_s);
}

TEST(StrategiesFor, LeaveOutWhatMakesNoSense) {
  EXPECT_EQ(strategies_for(1, 8).size(), 8u);
  EXPECT_EQ(strategies_for(2, 8).size(), 16u);
  EXPECT_EQ(strategies_for(2, 8).back().label(), "gradients+offload+checkpoint+bf16");
}

}  // namespace plan_test
}  // namespace fairshard::cli::planning

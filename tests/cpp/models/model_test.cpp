// A model by itself: the loss in chunks, activations that are computed again, and what is refused.
#include "models/configs.h"
#include "support/expect_error.h"
#include <fairshard/amp/autocast.h>

#include <ATen/ops/cross_entropy_loss.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <algorithm>
#include <memory>
#include <string>

namespace fairshard::models {
namespace model_test {

using test::expect_error;
using test::make_causal;
using test::make_tokens;

/// Loss and gradients after one backward.
std::vector<at::Tensor> values_of(CausalModel& model, const at::Tensor& loss) {
  std::vector<at::Tensor> values{loss.detach()};
  model->zero_grad();
  loss.backward();
  for (const at::Tensor& parameter : model->parameters()) {
    values.push_back(parameter.grad().clone());
  }
  return values;
}

class EachModelAlone : public testing::TestWithParam<std::string> {};

TEST_P(EachModelAlone, ChunksOfTheLossAddUpToThatOfAllLogits) {
  CausalModel model = make_causal(GetParam());
  const at::Tensor tokens = make_tokens(1);
  at::Tensor labels = tokens.clone();
  labels[0].slice(0, 3, 6).fill_(-100);
  const at::Tensor logits = model->forward(tokens).slice(1, 0, -1).flatten(0, 1);
  const auto whole = values_of(model, at::cross_entropy_loss(logits, labels.slice(1, 1).flatten()));
  for (const int64_t chunk : {0, 1, 7, 24, 100}) {
    model->set_loss_chunk(chunk);
    const auto chunked = values_of(model, model->forward(tokens, labels));
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(chunked[i].allclose(whole[i], 1e-5, 1e-6)) << "chunks of " << chunk;
    }
  }
}

TEST_P(EachModelAlone, ActivationsThatAreComputedAgainChangeNoBit) {
  CausalModel model = make_causal(GetParam());
  const at::Tensor tokens = make_tokens(1);
  const auto kept = values_of(model, model->loss(tokens, tokens));
  model->set_checkpoint_activation(true);
  const auto again = values_of(model, model->loss(tokens, tokens));
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_TRUE(again[i].equal(kept[i]));
  }
}

TEST_P(EachModelAlone, MixedPrecisionRoundsTheSameLoss) {
  CausalModel model = make_causal(GetParam());
  model->set_loss_chunk(10);
  const at::Tensor tokens = make_tokens(1);
  const auto plain = values_of(model, model->loss(tokens, tokens));
  at::Tensor loss;
  {
    const Autocast autocast(at::kCPU);
    loss = model->loss(tokens, tokens);
    EXPECT_EQ(model->forward(tokens).scalar_type(), at::kBFloat16);
  }
  const auto mixed = values_of(model, loss);
  EXPECT_FALSE(mixed[0].equal(plain[0]));
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(mixed[i].scalar_type(), at::kFloat);
    EXPECT_LT((mixed[i] - plain[i]).norm().item<double>(), 0.05 * plain[i].norm().item<double>());
  }
}

INSTANTIATE_TEST_SUITE_P(, EachModelAlone,
                         testing::Values(test::kGpt2, test::kLlama, test::kQwen3));

/// The most memory that tensors of this thread have had while it lived.
class PeakMemory : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*memory*/, int64_t bytes, size_t /*allocated*/, size_t /*reserved*/,
                         c10::Device /*device*/) override {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

TEST(Model, LogitsNeverStandWhole) {
  constexpr int64_t kVocabulary = 10000, kPositions = 2048;
  constexpr int64_t kLogitBytes = kVocabulary * kPositions * 4;
  CausalModel model = make_model(ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 10000,
    "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1})"));
  const at::Tensor tokens = make_tokens(1, kPositions / 64, 64);
  model->set_loss_chunk(64);
  const auto peak = [&](bool is_whole) {
    const auto memory = std::make_shared<PeakMemory>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
    const at::Tensor loss =
        is_whole ? at::cross_entropy_loss(model->forward(tokens).flatten(0, 1), tokens.flatten())
                 : model->loss(tokens, tokens);
    loss.backward();
    return memory->peak();
  };
  EXPECT_LT(peak(false), kLogitBytes / 4);
  EXPECT_GT(peak(true), 2 * kLogitBytes);  // so much would be seen
}

TEST(Model, WhatDoesNotFitIsNamed) {
  CausalModel gpt2 = make_causal(test::kGpt2);
  const at::Tensor tokens = make_tokens(1);
  expect_error([&] { gpt2->forward(tokens[0]); }, {"gpt2: tokens must be int64", "[12]"});
  expect_error([&] { gpt2->forward(tokens.to(at::kInt)); }, {"gpt2", "Int"});
  expect_error([&] { gpt2->forward(tokens + 1); }, {"below 50, the vocab_size, but there is a 50"});
  expect_error([&] { gpt2->forward(tokens - 50); }, {"there is a -"});
  expect_error([&] { gpt2->forward(make_tokens(1, 1, 17)); }, {"[1, 17]", "16 positions"});
  expect_error([&] { gpt2->loss(tokens, tokens.slice(1, 1)); }, {"labels are [2, 11]", "[2, 12]"});
  expect_error([&] { gpt2->set_loss_chunk(-1); }, {"positions is -1"});
}

}  // namespace model_test
}  // namespace fairshard::models

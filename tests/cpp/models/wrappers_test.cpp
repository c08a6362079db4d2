// Models within a ShardedDataParallel and an OffloadModel train as they do alone.
#include "models/configs.h"
#include "support/ranks.h"
#include "support/training.h"
#include <fairshard/models/paging.h>
#include <fairshard/optim/fused.h>

#include <gtest/gtest.h>

namespace fairshard::models {
namespace wrappers_test {

using comm::Group;
using test::make_causal;
using test::make_tokens;
using test::require_same;
using test::run_ranks;
using test::Values;

constexpr int kSteps = 4;

at::Tensor tokens_of(int rank, int step) {
  return make_tokens(static_cast<uint64_t>(10 * step + rank));
}

class ModelInWrappers : public testing::TestWithParam<std::string> {};

TEST_P(ModelInWrappers, ShardedRanksTrainAsReplicatedOnes) {
  run_ranks(2, [](Group group) {
    const auto trained = [&](const DataParallelOptions& options, const OssOptions& oss) {
      CausalModel model = make_causal(GetParam());
      model->set_loss_chunk(10);
      OSS<AdamW> optimizer(group, *model, torch::optim::AdamWOptions(1e-2), oss);
      ShardedDataParallel<CausalModel> parallel(group, model, optimizer, options);
      model->set_wrapper(options.waits_by_block() ? &parallel : nullptr);
      model->set_checkpoint_activation(options.waits_by_block());
      for (int step = 0; step < kSteps; ++step) {
        optimizer.zero_grad();
        const at::Tensor tokens = tokens_of(group.rank(), step);
        parallel.forward(tokens, tokens).backward();
        optimizer.step();
      }
      optimizer.wait_for_parameters();
      return test::values_of(*model);
    };
    const auto whole = DataParallelOptions().mode(DataParallelMode::kOptimizer);
    const auto plain = trained(whole, OssOptions());
    require_same(trained({}, test::kSmallBuckets), plain, true);
    const auto by_block = DataParallelOptions().waits_by_block(true);
    require_same(trained(by_block, OssOptions(test::kSmallBuckets).overlap_gather(true)), plain,
                 true);
    const auto released = OssOptions(test::kSmallBuckets).release_parameters(true);
    require_same(trained(by_block, released), plain, true);
    require_same(
        trained(by_block, OssOptions(released).overlap_gather(true).step_in_backward(true)), plain,
        true);
  });
}

TEST_P(ModelInWrappers, PagedModelsTrainAsOthers) {
  const auto trained = [&](bool is_paged) {
    CausalModel model = make_causal(GetParam());
    AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    std::unique_ptr<OffloadModel> offload;
    if (is_paged) {
      offload = std::make_unique<OffloadModel>(
          offload_blocks(model), OffloadOptions().num_slices(4).checkpoint_activation(true));
      offload->step_in_backward(optimizer);
    }
    Values values;
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const at::Tensor tokens = tokens_of(0, step);
      const at::Tensor loss =
          is_paged ? offload->forward({tokens, tokens}).at(0) : model->loss(tokens, tokens);
      loss.backward();
      optimizer.step();
      values.push_back(loss.detach());
    }
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = tokens_of(0, 0);
    values.push_back(is_paged ? offload->forward(tokens) : model->forward(tokens));
    return values;
  };
  require_same(trained(true), trained(false), true);
}

INSTANTIATE_TEST_SUITE_P(, ModelInWrappers,
                         testing::Values(test::kGpt2, test::kLlama, test::kQwen3));

}  // namespace wrappers_test
}  // namespace fairshard::models

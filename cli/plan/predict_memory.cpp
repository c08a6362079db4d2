#include "gpt_step.h"
#include "hub_step.h"
#include "layout.h"
#include "predict.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

namespace fairshard::cli::planning {
namespace {

constexpr int64_t kMomentsOfAdamW = 2;
/// Batches that the trainer has ready, beside the one in use; tokens and targets are int64, and one
/// tensor for a model of the hub.
constexpr int64_t kBatches = 5;
constexpr int64_t kBatchBytesPerToken = 16;
constexpr int64_t kHubBatchBytesPerToken = 8;

/// What the rank with the most owns.
int64_t own_elements(const shard::ShardLayout& plan, bool with_padding) {
  int64_t most = 0;
  for (int rank = 0; rank < plan.ranks(); ++rank) {
    int64_t sum = 0;
    if (with_padding) {
      for (size_t bucket = 0; bucket < plan.buckets().size(); ++bucket) {
        sum += plan.range_length(bucket, rank);
      }
    } else {
      for (const auto& piece : plan.pieces(rank)) {
        sum += piece.numel();
      }
    }
    most = std::max(most, sum);
  }
  return most;
}

int64_t all_elements(const shard::ShardLayout& plan) {
  int64_t sum = 0;
  for (const auto& bucket : plan.buckets()) {
    sum += bucket.length();
  }
  return sum;
}

/// The largest buckets: two under way, and one that is being filled.
int64_t most_bucket_bytes(const shard::ShardLayout& plan) {
  std::vector<int64_t> sizes;
  for (const auto& bucket : plan.buckets()) {
    sizes.push_back(bucket.length() * kFloat);
  }
  std::ranges::sort(sizes, std::ranges::greater());
  int64_t bytes = 0;
  for (size_t i = 0; i < std::min<size_t>(sizes.size(), 3); ++i) {
    bytes += sizes[i];
  }
  return bytes;
}

/// Weights, gradients, states and buckets of a plan.
MemoryPrediction planned_memory(const shard::ShardLayout& plan, Sharding sharding,
                                int64_t parameters) {
  MemoryPrediction memory;
  memory.weights = all_elements(plan) * kFloat;
  memory.gradients =
      (sharding == Sharding::kGradients ? own_elements(plan, true) : all_elements(plan)) * kFloat;
  memory.optimizer = kMomentsOfAdamW * kFloat *
                     (sharding == Sharding::kNone ? parameters : own_elements(plan, false));
  memory.buckets = sharding == Sharding::kGradients ? most_bucket_bytes(plan) : 0;
  return memory;
}

/// Which blocks are computed again together; see StepShape.
std::vector<int64_t> recomputed_blocks(const ModelShape& model, const Strategy& strategy,
                                       const PageLayout* pages) {
  std::vector<int64_t> result(model.blocks.size(), -1);
  if (strategy.recomputes && pages) {
    return pages->slice_of_block;
  }
  for (size_t i = 1; strategy.recomputes && i + 1 < result.size(); ++i) {
    result[i] = static_cast<int64_t>(i);
  }
  return result;
}

int64_t windows_of(const Workload& workload) {
  return std::max<int64_t>(workload.batch / workload.ranks, 1);
}

/// Of a model that the trainer trains. It and the ledger must outlive the step.
std::unique_ptr<ModelStep> make_step(const ModelShape& model, const Strategy& strategy,
                                     const Workload& workload, const PageLayout* pages,
                                     MemoryLedger& ledger) {
  const auto recomputed = recomputed_blocks(model, strategy, pages);
  if (model.gpt) {
    const StepShape shape{*model.gpt, windows_of(workload), strategy.is_mixed, recomputed};
    return std::make_unique<GptStep>(shape, ledger);
  }
  const HubStepShape shape{windows_of(workload), strategy.is_mixed, workload.is_on_host,
                           recomputed};
  return std::make_unique<HubStep>(shape, model, ledger);
}

/// As the reducer learns it from the first backward. Gradients of a paged model do not come to it
/// one by one.
std::vector<size_t> gradient_order(const ModelShape& model, const Strategy& strategy,
                                   const Workload& workload) {
  NotingSink sink;
  if (model.is_trainable() && strategy.slices == 0) {
    MemoryLedger ledger;
    make_step(model, strategy, workload, nullptr, ledger)->run(sink);
  }
  return sink.order;
}

/// The peak on the device, on top of what stays from step to step. The first step fills pools, with
/// buckets for gradients that come last first; the third is like all that follow.
int64_t peak_of_step(const ModelShape& model, const Strategy& strategy, const Workload& workload,
                     const PageLayout* pages, const shard::ShardLayout& plan, int64_t lasting) {
  MemoryLedger ledger;
  ledger.take(lasting);
  const bool is_sharded = strategy.sharding == Sharding::kGradients;
  const auto first_plan = bucket_layout(model, strategy.sharding, workload.ranks);
  ReducingSink reducer(ledger, first_plan, is_sharded);
  std::optional<PagingSink> paging;
  if (pages) {
    const bool counts_reducer = workload.is_on_host && workload.ranks > 1;
    paging.emplace(ledger, pages->slice_of_parameter, pages->slice_of_block,
                   counts_reducer ? &reducer : nullptr);
  }
  GradientSink& sink = paging ? static_cast<GradientSink&>(*paging) : reducer;
  const int64_t tokens = windows_of(workload) * model.window();
  ledger.take(kBatches * (model.gpt ? kBatchBytesPerToken : kHubBatchBytesPerToken) * tokens);
  const auto step = make_step(model, strategy, workload, pages, ledger);
  step->run(sink);
  reducer.follow(plan);
  step->run(sink);
  ledger.reset_peak();
  step->run(sink);
  return ledger.peak();
}

/// Without knowledge of what is computed: only the gradient that is being reduced is added.
int64_t largest_gradient(const ModelShape& model) {
  int64_t most = 0;
  for (const auto& parameter : model.parameters) {
    most = std::max(most, parameter.numel);
  }
  return most * kFloat;
}

}  // namespace

MemoryPrediction predict_memory(const ModelShape& model, const Strategy& strategy,
                                const Workload& workload) {
  const auto plan = bucket_layout(model, strategy.sharding, workload.ranks,
                                  gradient_order(model, strategy, workload));
  const int64_t parameters = model.parameter_count();
  MemoryPrediction memory = planned_memory(plan, strategy.sharding, parameters);
  std::optional<PageLayout> pages;
  if (strategy.slices > 0) {
    pages = page_layout(model, strategy.slices);
    // One rank alone steps where its pages lie; several share flat copies in host memory.
    const bool is_alone = workload.ranks == 1;
    const int64_t shared = memory.weights + memory.gradients + memory.buckets;
    const int64_t states = is_alone ? kMomentsOfAdamW * kFloat * parameters : memory.optimizer;
    const bool counts_shared = workload.is_on_host && !is_alone;
    memory = counts_shared ? memory : MemoryPrediction();
    memory.weights += pages->device_bytes;
    memory.host = pages->host_bytes + (counts_shared ? 0 : states + (is_alone ? 0 : shared));
  }
  const int64_t named = memory.weights + memory.gradients + memory.optimizer + memory.buckets;
  // Buckets are counted as they are used.
  const int64_t lasting = named - memory.buckets;
  const auto* const paging = pages ? &*pages : nullptr;
  memory.peak = model.is_trainable()
                    ? peak_of_step(model, strategy, workload, paging, plan, lasting)
                    : named + largest_gradient(model);
  memory.activations = std::max<int64_t>(memory.peak - named, 0);
  return memory;
}

int64_t predict_released_peak(const ModelShape& model, const MemoryPrediction& sharded,
                              const Workload& workload) {
  int64_t largest = 0;
  for (const auto& block : model.blocks) {
    int64_t bytes = 0;
    for (const size_t parameter : block) {
      bytes += model.parameters[parameter].numel * kFloat;
    }
    largest = std::max(largest, bytes);
  }
  constexpr int64_t kBlocksAtOnce = 3;
  return sharded.peak - sharded.weights + sharded.weights / workload.ranks +
         kBlocksAtOnce * largest;
}

}  // namespace fairshard::cli::planning

#include "optimizers.h"

#include "../buckets.h"
#include <fairshard/optim/adascale.h>
#include <fairshard/optim/fused.h>

#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <algorithm>

namespace fairshard::cli::training {
namespace {

using torch::optim::Optimizer;

std::optional<int64_t> bucket_bytes_for(const LanguageModel& model) {
  int64_t bytes = 0;
  for (const auto& parameter : model->parameters()) {
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bucket_bytes(bytes);
}

torch::optim::AdamWOptions adamw_options(const TrainOptions& options) {
  return torch::optim::AdamWOptions(options.lr)
      .betas({0.9, 0.95})
      .weight_decay(options.weight_decay);
}

/// Two groups, of which the second does not decay; none is empty.
std::vector<torch::optim::OptimizerParamGroup> decay_groups(const LanguageModel& model,
                                                            const TrainOptions& options) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> others;
  for (const auto& parameter : model->parameters()) {
    (parameter.dim() > 1 ? matrices : others).push_back(parameter);
  }
  const auto rates = adamw_options(options);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<torch::optim::AdamWOptions>(rates));
  if (!others.empty()) {
    auto undecayed = std::make_unique<torch::optim::AdamWOptions>(rates);
    undecayed->weight_decay(0);
    groups.emplace_back(others, std::move(undecayed));
  }
  return groups;
}

AdaScaleOptions adascale_options(const TrainOptions& options) {
  return AdaScaleOptions().gain(scale::GainMeterOptions().accumulation(options.accumulate));
}

/// Of parameters, or groups of them.
template <typename Parameters>
std::unique_ptr<Optimizer> whole_optimizer(const comm::Group& group, const Parameters& parameters,
                                           const TrainOptions& options) {
  const auto rates = adamw_options(options);
  if (options.adascale) {
    return std::make_unique<AdaScale<AdamW>>(group, adascale_options(options), parameters, rates);
  }
  return std::make_unique<AdamW>(parameters, rates);
}

/// Of a model, whose parameters then have their names, or of groups.
template <typename Parameters>
std::unique_ptr<Optimizer> sharded_optimizer(const comm::Group& group, const Parameters& parameters,
                                             std::optional<int64_t> bucket_bytes,
                                             const TrainOptions& options) {
  const auto rates = adamw_options(options);
  const auto oss = OssOptions()
                       .bucket_bytes(bucket_bytes)
                       .step_in_backward(options.step_in_backward)
                       .overlap_gather(options.overlap_gather)
                       .release_parameters(options.release_parameters);
  if (options.adascale) {
    return std::make_unique<AdaScale<OSS<AdamW>>>(group, adascale_options(options), group,
                                                  parameters, rates, oss);
  }
  return std::make_unique<OSS<AdamW>>(group, parameters, rates, oss);
}

OssBase* as_sharded(Optimizer& optimizer) { return dynamic_cast<OssBase*>(&optimizer); }

/// Gradients pass through buckets of whole parameters: those under way, and one that is being
/// filled.
int64_t most_bucket_bytes(const OssBase& optimizer, int buckets_in_flight) {
  std::vector<int64_t> sizes;
  for (const auto& group : optimizer.flat_groups()) {
    for (size_t i = 0; i < group->layout().buckets().size(); ++i) {
      sizes.push_back(static_cast<int64_t>(group->bucket(i).flat().nbytes()));
    }
  }
  std::ranges::sort(sizes, std::ranges::greater());
  int64_t bytes = 0;
  for (size_t i = 0; i < sizes.size() && i <= static_cast<size_t>(buckets_in_flight); ++i) {
    bytes += sizes[i];
  }
  return bytes;
}

int64_t resident_bytes(const OssBase& optimizer) {
  size_t bytes = 0;
  for (const auto& group : optimizer.flat_groups()) {
    for (size_t i = 0; i < group->layout().buckets().size(); ++i) {
      bytes += group->bucket(i).resident_bytes();
    }
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace

DataParallelMode mode_of(const TrainOptions& options) {
  return options.shard == "none"        ? DataParallelMode::kReplicated
         : options.shard == "optimizer" ? DataParallelMode::kOptimizer
                                        : DataParallelMode::kGradients;
}

std::unique_ptr<Optimizer> make_optimizer(const comm::Group& group, const LanguageModel& model,
                                          const TrainOptions& options) {
  const bool is_whole = options.shard == "none";
  if (options.decays_matrices_only) {
    const auto groups = decay_groups(model, options);
    return is_whole ? whole_optimizer(group, groups, options)
                    : sharded_optimizer(group, groups, bucket_bytes_for(model), options);
  }
  return is_whole ? whole_optimizer(group, model->parameters(), options)
                  : sharded_optimizer(group, *model, bucket_bytes_for(model), options);
}

DataParallelOptions parallel_options(DataParallelMode mode, const LanguageModel& model) {
  auto options = DataParallelOptions().mode(mode);
  if (const auto bytes = bucket_bytes_for(model)) {
    options.bucket_bytes(*bytes);
  }
  return options;
}

std::vector<std::reference_wrapper<OssBase>> sharded(Optimizer& optimizer) {
  OssBase* const oss = as_sharded(optimizer);
  return oss ? std::vector{std::ref(*oss)} : std::vector<std::reference_wrapper<OssBase>>();
}

void clip_gradients(Optimizer& optimizer, double max_norm) {
  if (OssBase* const oss = as_sharded(optimizer)) {
    oss->clip_grad_norm(max_norm);
    return;
  }
  std::vector<at::Tensor> parameters;  // the norm is that of all groups together
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  torch::nn::utils::clip_grad_norm_(parameters, max_norm);
}

int64_t state_bytes(Optimizer& optimizer) {
  OssBase* const oss = as_sharded(optimizer);
  std::vector<at::Tensor> tensors;
  for (const auto& entry : (oss ? oss->base() : optimizer).state()) {
    const auto& state = static_cast<const FusedState&>(*entry.second);
    tensors.insert(tensors.end(), {state.average, state.square_average});
  }
  return storage_bytes(tensors);
}

MemoryUse memory_of(Optimizer& optimizer, DataParallelMode mode) {
  std::vector<at::Tensor> weights;
  std::vector<at::Tensor> gradients;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      weights.push_back(parameter);
      gradients.push_back(shard::whole_grad(parameter));
    }
  }
  MemoryUse use;
  use.weights = storage_bytes(weights);
  if (OssBase* const oss = as_sharded(optimizer)) {
    use.weights = resident_bytes(*oss);
    const auto own = oss->sharded_step().gradient_memory();
    gradients.insert(gradients.end(), own.begin(), own.end());
    if (mode == DataParallelMode::kGradients) {
      use.buckets = most_bucket_bytes(*oss, DataParallelOptions().buckets_in_flight());
    }
  }
  use.gradients = storage_bytes(gradients);
  use.optimizer = state_bytes(optimizer);
  return use;
}

}  // namespace fairshard::cli::training

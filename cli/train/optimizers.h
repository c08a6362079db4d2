#pragma once
// AdamW, sharded or not, with or without AdaScale.

#include "language_model.h"
#include "memory_use.h"
#include "options.h"
#include <fairshard/comm/group.h>
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/optim/oss.h>

#include <torch/optim/optimizer.h>

#include <functional>
#include <memory>
#include <vector>

namespace fairshard::cli::training {

/// The optimizer that the options choose; an OssBase unless --shard is none.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const comm::Group& group,
                                                        const LanguageModel& model,
                                                        const TrainOptions& options);

DataParallelMode mode_of(const TrainOptions& options);

/// For a ShardedDataParallel of this mode.
DataParallelOptions parallel_options(DataParallelMode mode, const LanguageModel& model);

/// The optimizer as a ShardedDataParallel takes it: nothing if it is not sharded.
std::vector<std::reference_wrapper<OssBase>> sharded(torch::optim::Optimizer& optimizer);

/// See Strategy::clip.
void clip_gradients(torch::optim::Optimizer& optimizer, double max_norm);

/// Weights, gradients, state and buckets of an optimizer and its parameters.
MemoryUse memory_of(torch::optim::Optimizer& optimizer, DataParallelMode mode);

/// What a fused optimizer keeps.
int64_t state_bytes(torch::optim::Optimizer& optimizer);

}  // namespace fairshard::cli::training

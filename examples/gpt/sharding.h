#pragma once
// The model and its optimizer on several ranks: what --shard chooses.

#include "gpt/model.h"
#include "gpt/report.h"
#include <fairshard/comm/group.h>
#include <fairshard/nn/sharded_data_parallel.h>
#include <fairshard/optim/fused.h>
#include <fairshard/optim/oss.h>

#include <torch/optim/adamw.h>

#include <memory>

namespace gpt {

/// One rank's copy of a model, and its AdamW or its share of one.
class ShardedGpt {
 public:
  /// All ranks begin with rank 0's weights. Collective; blocks.
  ShardedGpt(const fairshard::comm::Group& group, const Gpt& model,
             fairshard::DataParallelMode mode, const torch::optim::AdamWOptions& options);

  /// For training; the backward of what it returns is collective and reduces the gradients.
  torch::Tensor forward(const torch::Tensor& tokens) { return parallel_.forward(tokens); }
  void zero_grad() { parallel_.zero_grad(); }
  /// Collective if the optimizer is sharded; blocks.
  void step(double lr);

  /// The model itself, for everything that is not training.
  Gpt& module() { return parallel_.module(); }

  /// What this rank holds between a step and the next zero_grad().
  MemoryUse memory_use();

 private:
  fairshard::DataParallelMode mode_;
  /// One of the two, by the mode; the other is null.
  std::unique_ptr<fairshard::AdamW> whole_;
  std::unique_ptr<fairshard::OSS<fairshard::AdamW>> sharded_;
  fairshard::ShardedDataParallel<Gpt> parallel_;
};

}  // namespace gpt

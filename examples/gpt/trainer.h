#pragma once
// One rank's training run: from a corpus to a trained model and a report.

#include "gpt/corpus.h"
#include "gpt/model.h"
#include <fairshard/comm/group.h>

#include <torch/arg.h>

#include <cstdint>
#include <string>

namespace gpt {

struct TrainOptions {
  // Behaviour
  TORCH_ARG(GptOptions, model);
  TORCH_ARG(int64_t, steps) = 600;
  /// Windows per rank and step.
  TORCH_ARG(int64_t, batch) = 8;
  /// The highest learning rate, reached after a short warm-up; the last is a tenth of it.
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(uint64_t, seed) = 0;
  /// "cpu", "cuda", or "auto" for CUDA where there is some.
  TORCH_ARG(std::string, device) = "auto";
  /// What each rank holds only its share of: "none", "optimizer" (its state), or "gradients" (those
  /// and the optimizer's state). The results are the same.
  TORCH_ARG(std::string, shard) = "gradients";

  // Performance
  /// ATen's threads per rank; 0 shares the machine's cores among its ranks. The same number gives
  /// the same losses, whatever has launched the ranks.
  TORCH_ARG(int, threads) = 0;
};

/// Trains on this rank; rank 0 writes progress to standard error and the report to standard output.
/// The corpus has windows of the model's context. Collective: every rank of the group calls it with
/// the same text and options. Blocks.
void train(const fairshard::comm::Group& group, const Corpus& corpus, const TrainOptions& options);

}  // namespace gpt

#pragma once
// From a model, a strategy and a machine to bytes and seconds. Pure functions; see docs/planner.md
// for the formulas.

#include "model_shape.h"

#include <cstdint>
#include <string>
#include <vector>

namespace fairshard::cli::planning {

enum class Sharding { kNone, kOptimizer, kGradients };

struct Strategy {
  Sharding sharding = Sharding::kNone;
  /// Into how many slices the model is cut that are paged through the device; 0: it is not.
  int64_t slices = 0;
  bool recomputes = false;  ///< activation checkpointing
  bool is_mixed = false;    ///< bfloat16 by autocast

  /// For instance "gradients+offload+checkpoint+bf16".
  std::string label() const;
};

struct Workload {
  int ranks = 1;
  /// Windows per step, of all ranks together.
  int64_t batch = 16;
  /// Whether the ranks compute in host memory, so that nothing is beside it.
  bool is_on_host = false;
};

struct Machine {
  double link_bytes_per_s = 0;         ///< of one rank, each way
  double flops_per_s = 0;              ///< of one rank
  double host_link_bytes_per_s = 0;    ///< between device and host memory, each way
  double device_parameters_per_s = 0;  ///< stepped by the optimizer on the device
  double host_parameters_per_s = 0;    ///< and in host memory
};

/// Of one rank. The kinds are those that the trainer logs.
struct MemoryPrediction {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t buckets = 0;
  int64_t activations = 0;  ///< what the peak has beyond the other kinds
  int64_t host = 0;         ///< beside the device: weights, gradients and states of a paged model
  int64_t peak = 0;         ///< on the device
};

struct TimePrediction {
  double compute_s = 0;
  double link_s = 0;  ///< that nothing hides
  double optimizer_s = 0;
  double step_s = 0;
};

struct Prediction {
  Strategy strategy;
  MemoryPrediction memory;
  int64_t sent_bytes = 0;  ///< by one rank in a step
  TimePrediction time;
};

/// All that make sense for so many ranks, with and without recomputation and mixed precision.
std::vector<Strategy> strategies_for(int ranks, int64_t slices);

MemoryPrediction predict_memory(const ModelShape& model, const Strategy& strategy,
                                const Workload& workload);
/// The peak if weights are shared as well and gathered block by block
/// (OssOptions::release_parameters with overlap_gather), from that of sharded gradients with
/// recomputation: a share of the weights, and of the largest block three times: that which
/// computes, that which comes, and its gradients.
int64_t predict_released_peak(const ModelShape& model, const MemoryPrediction& sharded,
                              const Workload& workload);
int64_t predict_sent_bytes(const ModelShape& model, const Strategy& strategy,
                           const Workload& workload);
/// Floating point operations of one rank in a step, without recomputation: those of matrix
/// products. Only the tokens of a GPT are known; other models are taken to be a stack of them.
double predict_flops(const ModelShape& model, const Workload& workload, int64_t context);
TimePrediction predict_time(const ModelShape& model, const Strategy& strategy,
                            const Workload& workload, const Machine& machine, int64_t context);

}  // namespace fairshard::cli::planning

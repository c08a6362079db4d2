#include "predict.h"

#include <algorithm>

namespace fairshard::cli::planning {
namespace {

/// What a rank sends to bring a buffer of all parameters together once: a reduce-scatter or an
/// all-gather.
double one_way_bytes(const ModelShape& model, int ranks) {
  return kFloat * static_cast<double>(model.parameter_count()) * (ranks - 1) / ranks;
}

double ways(Sharding sharding) { return sharding == Sharding::kOptimizer ? 3 : 2; }

}  // namespace

std::string Strategy::label() const {
  std::string text = sharding == Sharding::kNone        ? "none"
                     : sharding == Sharding::kOptimizer ? "optimizer"
                                                        : "gradients";
  if (slices > 0) {
    text = sharding == Sharding::kNone ? "offload" : text + "+offload";
  }
  text += recomputes ? "+checkpoint" : "";
  text += is_mixed ? "+bf16" : "";
  return text;
}

std::vector<Strategy> strategies_for(int ranks, int64_t slices) {
  std::vector<Strategy> basic{{Sharding::kNone}};
  if (ranks > 1) {
    basic.push_back({Sharding::kOptimizer});
    basic.push_back({Sharding::kGradients});
    basic.push_back({Sharding::kGradients, slices});
  } else {
    basic.push_back({Sharding::kNone, slices});
  }
  std::vector<Strategy> all;
  for (const bool is_mixed : {false, true}) {
    for (const auto& each : basic) {
      for (const bool recomputes : {false, true}) {
        all.push_back({each.sharding, each.slices, recomputes, is_mixed});
      }
    }
  }
  return all;
}

int64_t predict_sent_bytes(const ModelShape& model, const Strategy& strategy,
                           const Workload& workload) {
  return static_cast<int64_t>(ways(strategy.sharding) * one_way_bytes(model, workload.ranks));
}

double predict_flops(const ModelShape& model, const Workload& workload, int64_t context) {
  const auto tokens = static_cast<double>(workload.batch * context) / workload.ranks;
  // A multiplication and an addition per weight and token, once in forward and twice in backward;
  // embeddings are looked up, but the read-out has as many weights as that of tokens.
  auto weights = static_cast<double>(model.parameter_count());
  double attention = 0;
  if (model.gpt) {
    weights -= static_cast<double>(model.gpt->context() * model.gpt->width());
    attention = 12.0 * static_cast<double>(model.gpt->layers() * context * model.gpt->width());
  }
  return (6 * weights + attention) * tokens;
}

TimePrediction predict_time(const ModelShape& model, const Strategy& strategy,
                            const Workload& workload, const Machine& machine, int64_t context) {
  const double flops = predict_flops(model, workload, context);
  const double forward_s = flops / 3 / machine.flops_per_s;
  const double backward_s = (strategy.recomputes ? 3 : 2) * forward_s;
  const double one_way_s = one_way_bytes(model, workload.ranks) / machine.link_bytes_per_s;
  const auto parameters = static_cast<double>(model.parameter_count());
  const double own =
      strategy.sharding == Sharding::kNone ? parameters : parameters / workload.ranks;
  TimePrediction time;
  time.compute_s = forward_s + backward_s;
  if (strategy.slices > 0) {
    // Weights come twice, gradients leave once, beside computing; one rank steps beside it, too.
    const double paging_s = 2 * kFloat * parameters / machine.host_link_bytes_per_s;
    const double stepping_s = own / machine.host_parameters_per_s;
    const bool is_alone = workload.ranks == 1;
    const double together = std::max({time.compute_s, paging_s, is_alone ? stepping_s : 0});
    time.optimizer_s = is_alone ? std::max(stepping_s - time.compute_s, 0.0) : stepping_s;
    time.link_s = ways(strategy.sharding) * one_way_s;
    time.step_s = together + (is_alone ? 0 : stepping_s) + time.link_s;
    return time;
  }
  // Reductions run beside backward; gathering comes after the step.
  const double reduced_s = (strategy.sharding == Sharding::kGradients ? 1 : 2) * one_way_s;
  const double gathered_s = strategy.sharding == Sharding::kNone ? 0 : one_way_s;
  time.link_s = std::max(reduced_s - backward_s, 0.0) + gathered_s;
  time.optimizer_s = own / machine.device_parameters_per_s;
  time.step_s = time.compute_s + time.link_s + time.optimizer_s;
  return time;
}

}  // namespace fairshard::cli::planning

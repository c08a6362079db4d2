#include <fairshard/outer/options.h>

#include <c10/util/Exception.h>

namespace fairshard::outer {

void check_options(const OuterOptions& options) {
  const auto at_least_one = [](const char* name, int64_t value) {
    TORCH_CHECK_VALUE(value >= 1, name, " is ", value, ", but must be at least 1");
  };
  at_least_one("slow_frequency (slowmo_frequency)", options.slow_frequency());
  at_least_one("average_frequency (localsgd_frequency)", options.average_frequency());
  at_least_one("gossip_frequency", options.gossip_frequency());
  at_least_one("fragments", options.fragments());
  at_least_one("pieces (slowmo_num_shards)", options.pieces());
  TORCH_CHECK_VALUE(options.momentum() >= 0 && options.momentum() < 1, "the outer momentum is ",
                    options.momentum(), ", but must be at least 0 and below 1");
  TORCH_CHECK_VALUE(options.learning_rate() > 0, "the outer learning rate is ",
                    options.learning_rate(), ", but must be above 0");
  TORCH_CHECK_VALUE(options.local_weight() >= 0 && options.local_weight() < 1, "local_weight is ",
                    options.local_weight(), ", but must be at least 0 and below 1");
  TORCH_CHECK_VALUE(options.delay() >= 0 && options.delay() < options.slow_frequency(), "delay is ",
                    options.delay(), ", but must be at least 0 and below the slow ",
                    "frequency of ", options.slow_frequency());
  TORCH_CHECK_VALUE(options.fragments() <= options.slow_frequency(), options.fragments(),
                    " fragments cannot take turns in ", options.slow_frequency(), " calls");
  const bool is_streaming =
      options.fragments() > 1 || options.delay() > 0 || options.local_weight() > 0;
  TORCH_CHECK_VALUE(!is_streaming || options.optimizer() != OuterOptimizerKind::kAverage,
                    "streaming (fragments, delay or local_weight) needs an outer optimizer: slow "
                    "momentum or Nesterov");
  const bool is_sgp = options.base() == BaseAlgorithm::kSgp;
  TORCH_CHECK_VALUE(
      !is_sgp || !is_streaming,
      "streaming (fragments, delay or local_weight) goes with LocalSGD, not with SGP");
  TORCH_CHECK_VALUE(!is_sgp || options.wire() == WireFormat::kFloat32,
                    "SGP's messages are float32: another wire format goes with LocalSGD");
}

OuterOptions settle_options(const OuterOptions& options, int nodes, bool is_auto) {
  check_options(options);
  OuterOptions result = options;
  if (options.optimizer() == OuterOptimizerKind::kSlowMomentum) {
    if (is_auto) {
      result.momentum(suggested_momentum(nodes));
    }
    if (result.momentum() == 0) {
      result.optimizer(OuterOptimizerKind::kAverage);
    }
  }
  check_options(result);
  return result;
}

std::string momentum_advice(const OuterOptions& options, int nodes) {
  const double suggested = suggested_momentum(nodes);
  if (options.optimizer() != OuterOptimizerKind::kSlowMomentum ||
      options.momentum() != OuterOptions().momentum() || suggested == options.momentum()) {
    return "";
  }
  return c10::str(
      "the slow momentum is ", options.momentum(), ", the default, but with ", nodes, " node(s) ",
      suggested,
      " served better in the SlowMo paper's translation runs; \"auto\" takes that value");
}

double suggested_momentum(int nodes) {
  return nodes < 4 ? 0.0 : nodes < 8 ? 0.2 : nodes < 16 ? 0.5 : 0.6;
}

}  // namespace fairshard::outer

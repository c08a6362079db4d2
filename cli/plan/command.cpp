// fairshard plan: what each strategy would need, and which of them fits.
#include "../commands.h"
#include "../readable.h"
#include "../table.h"
#include "measure.h"
#include "options.h"
#include "predict.h"

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace fairshard::cli {
namespace {

using namespace planning;
using Json = nlohmann::json;

struct Candidate {
  Prediction prediction;
  bool fits = true;
  bool is_best = false;
  std::optional<Measurement> measurement = std::nullopt;
};

bool is_wanted(const Strategy& strategy, const PlanOptions& options) {
  const bool has_precision = options.amp == "both" || strategy.is_mixed == (options.amp == "bf16");
  const auto& only = options.only;
  return only.empty() ? has_precision
                      : std::find(only.begin(), only.end(), strategy.label()) != only.end();
}

void check_labels(const std::vector<Strategy>& all, const PlanOptions& options) {
  for (const auto& label : options.only) {
    std::string known;
    bool is_known = false;
    for (const auto& strategy : all) {
      known += (known.empty() ? "" : ", ") + strategy.label();
      is_known = is_known || strategy.label() == label;
    }
    TORCH_CHECK_VALUE(is_known, "--strategy ", label, " is none of those for ",
                      options.workload.ranks, " rank(s): ", known);
  }
}

std::vector<Candidate> predict_all(const ModelShape& model, const PlanOptions& options) {
  Workload workload = options.workload;
  workload.is_on_host = options.measuring.device == "cpu";
  const int64_t context = options.context_of(model);
  const auto strategies = strategies_for(workload.ranks, options.slices);
  check_labels(strategies, options);
  std::vector<Candidate> result;
  for (const auto& strategy : strategies) {
    if (!is_wanted(strategy, options)) {
      continue;
    }
    Candidate candidate{{strategy, predict_memory(model, strategy, workload),
                         predict_sent_bytes(model, strategy, workload),
                         predict_time(model, strategy, workload, options.machine(), context)}};
    const auto& memory = candidate.prediction.memory;
    const auto within = [](int64_t bytes, const std::optional<uint64_t>& limit) {
      return !limit || static_cast<uint64_t>(bytes) <= *limit;
    };
    candidate.fits =
        within(memory.peak, options.device_memory) && within(memory.host, options.host_memory);
    result.push_back(candidate);
  }
  return result;
}

/// The quickest that fits; of equally quick ones that with the least memory. A model is paged only
/// where nothing else fits: what its step takes depends on the host, of which little is known.
void mark_best(std::vector<Candidate>& candidates) {
  const auto cost = [](const Candidate& each) {
    const auto& [strategy, memory, sent, time] = each.prediction;
    return std::tuple(strategy.slices > 0, time.step_s, memory.peak);
  };
  Candidate* best = nullptr;
  for (auto& each : candidates) {
    if (each.fits && (!best || cost(each) < cost(*best))) {
      best = &each;
    }
  }
  if (best) {
    best->is_best = true;
  }
}

std::string readable_time(double seconds) {
  char text[32];
  if (seconds < 1) {
    std::snprintf(text, sizeof(text), "%.3g ms", 1000 * seconds);
  } else {
    std::snprintf(text, sizeof(text), "%.3g s", seconds);
  }
  return text;
}

void print_candidates(const std::vector<Candidate>& candidates) {
  std::vector<Row> rows{{"  strategy", "weights", "gradients", "optimizer", "buckets",
                         "activations", "device", "host", "sent/step", "time/step", "fits"}};
  for (const auto& each : candidates) {
    const auto& [strategy, memory, sent, time] = each.prediction;
    rows.push_back({(each.is_best ? "* " : "  ") + strategy.label(), readable_bytes(memory.weights),
                    readable_bytes(memory.gradients), readable_bytes(memory.optimizer),
                    readable_bytes(memory.buckets), readable_bytes(memory.activations),
                    readable_bytes(memory.peak), readable_bytes(memory.host), readable_bytes(sent),
                    readable_time(time.step_s), each.fits ? "yes" : "no"});
  }
  print_table(rows, std::cout, Align::kRight);
}

void print_command(const ModelShape& model, const Strategy& strategy, const PlanOptions& options,
                   const char* more = "") {
  std::cout << "  fairshard train";
  for (const auto& word : train_options(model, strategy, options.workload)) {
    std::cout << " " << word;
  }
  std::cout << more << "\n";
}

/// Weights that are sharded, too: less memory and more traffic than any candidate has.
void print_release(const ModelShape& model, const std::vector<Candidate>& candidates,
                   const PlanOptions& options) {
  const auto sharded = std::find_if(candidates.begin(), candidates.end(), [](const auto& each) {
    const auto& strategy = each.prediction.strategy;
    return strategy.sharding == Sharding::kGradients && strategy.slices == 0 && strategy.recomputes;
  });
  if (options.workload.ranks == 1 || sharded == candidates.end()) {
    return;
  }
  const int64_t bytes = predict_released_peak(model, sharded->prediction.memory, options.workload);
  const bool fits =
      !options.device_memory || static_cast<uint64_t>(bytes) <= *options.device_memory;
  std::cout
      << "Weights can be sharded, too: release_parameters and overlap_gather would need about "
      << readable_bytes(static_cast<double>(bytes)) << ", which "
      << (fits ? "fits" : "does not fit either") << " (docs/sharding.md).\n";
  if (model.is_trainable() && fits) {
    print_command(model, sharded->prediction.strategy, options,
                  " --release-parameters --overlap-gather");
  }
}

void print_advice(const ModelShape& model, const std::vector<Candidate>& candidates,
                  const PlanOptions& options) {
  const auto best = std::find_if(candidates.begin(), candidates.end(),
                                 [](const Candidate& each) { return each.is_best; });
  if (!model.is_trainable()) {
    std::cout << "\nActivations are not counted: what the model computes is not known.\n";
  }
  if (best == candidates.end()) {
    std::cout << "\nNothing fits. More ranks, more --slices, a smaller --batch or more memory "
                 "would help.\n";
    print_release(model, candidates, options);
  } else if (model.is_trainable()) {
    std::cout << "\n* is the quickest that fits:\n";
    print_command(model, best->prediction.strategy, options);
  }
}

void print_measurement(const Candidate& candidate) {
  const auto& predicted = candidate.prediction;
  const auto& measured = *candidate.measurement;
  std::vector<Row> rows{{predicted.strategy.label(), "predicted", "measured", "ratio"}};
  const auto add = [&](const std::string& name, double expected, double found, auto readable) {
    char ratio[32] = "-";
    if (found > 0) {
      std::snprintf(ratio, sizeof(ratio), "%.3f", expected / found);
    }
    rows.push_back({name, readable(expected), readable(found), ratio});
  };
  const auto bytes = [](double value) { return readable_bytes(value); };
  const auto add_bytes = [&](const std::string& name, int64_t expected, int64_t found) {
    add(name, static_cast<double>(expected), static_cast<double>(found), bytes);
  };
  add_bytes("weights", predicted.memory.weights, measured.memory.weights);
  add_bytes("gradients", predicted.memory.gradients, measured.memory.gradients);
  add_bytes("optimizer", predicted.memory.optimizer, measured.memory.optimizer);
  add_bytes("buckets", predicted.memory.buckets, measured.memory.buckets);
  add_bytes("activations", predicted.memory.activations, measured.memory.activations);
  add_bytes("device, peak", predicted.memory.peak, measured.memory.peak);
  add_bytes("host", predicted.memory.host, measured.memory.host);
  add_bytes("sent/step", predicted.sent_bytes, measured.sent_bytes);
  add("time/step", predicted.time.step_s, measured.time.step_s, readable_time);
  std::cout << "\n";
  print_table(rows, std::cout, Align::kRight);
}

/// The rates to plan with, as measured. A paged model's optimizer steps beside computing.
void print_rates(const ModelShape& model, const Candidate& candidate, const PlanOptions& options) {
  const auto& strategy = candidate.prediction.strategy;
  const auto& time = candidate.measurement->time;
  const auto print = [](const char* option, double rate) {
    char text[64];
    std::snprintf(text, sizeof(text), " %s %.3g", option, rate);
    std::cout << text;
  };
  const double recomputed = strategy.recomputes ? 4.0 / 3 : 1;
  const double flops =
      recomputed * predict_flops(model, options.workload, options.context_of(model));
  std::cout << "Times are right for the rates that are given; measured was";
  print("--compute", flops / time.compute_s / 1e12);
  if (strategy.slices == 0 && time.optimizer_s > 0) {
    const int sharers = strategy.sharding == Sharding::kNone ? 1 : options.workload.ranks;
    const auto own = static_cast<double>(model.parameter_count()) / sharers;
    print("--optimizer-rate", own / time.optimizer_s / 1e9);
  }
  std::cout << "\n";
}

Json memory_json(const MemoryPrediction& memory) {
  return {{"weights", memory.weights},
          {"gradients", memory.gradients},
          {"optimizer", memory.optimizer},
          {"buckets", memory.buckets},
          {"activations", memory.activations},
          {"host", memory.host},
          {"peak", memory.peak}};
}

Json time_json(const TimePrediction& time) {
  return {{"compute", time.compute_s},
          {"link", time.link_s},
          {"optimizer", time.optimizer_s},
          {"step", time.step_s}};
}

void print_json(const ModelShape& model, const std::vector<Candidate>& candidates) {
  Json list = Json::array();
  for (const auto& each : candidates) {
    const auto& [strategy, memory, sent, time] = each.prediction;
    list.push_back({{"strategy", strategy.label()},
                    {"bytes", memory_json(memory)},
                    {"sent_bytes", sent},
                    {"time_s", time_json(time)},
                    {"fits", each.fits},
                    {"is_best", each.is_best}});
    if (const auto& measured = each.measurement) {
      list.back()["measured"] = {{"bytes", memory_json(measured->memory)},
                                 {"sent_bytes", measured->sent_bytes},
                                 {"time_s", time_json(measured->time)}};
    }
  }
  const Json result = {{"model", model.name},
                       {"parameters", model.parameter_count()},
                       {"counts_activations", model.is_trainable()},
                       {"strategies", list}};
  std::cout << result.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
}

void plan(const PlanOptions& options) {
  const auto model = options.model();
  TORCH_CHECK_VALUE(!options.measures || model.is_trainable(),
                    "--measure runs the trainer: give --size, or the folder of a model as --model");
  // Only what the trainer trains has windows.
  TORCH_CHECK_VALUE(!model.is_trainable() || options.workload.batch % options.workload.ranks == 0,
                    "--batch ", options.workload.batch,
                    " windows cannot be shared evenly by --ranks ", options.workload.ranks);
  auto candidates = predict_all(model, options);
  mark_best(candidates);
  for (auto& each : candidates) {
    if (options.measures && (each.is_best || !options.only.empty())) {
      each.measurement =
          measure(model, each.prediction.strategy, options.workload, options.measuring);
    }
  }
  if (options.is_json) {
    print_json(model, candidates);
    return;
  }
  std::cout << model.name << ": " << model.parameter_count() << " parameters, "
            << options.workload.ranks << " rank(s), bytes per rank\n\n";
  print_candidates(candidates);
  print_advice(model, candidates, options);
  for (const auto& each : candidates) {
    if (each.measurement) {
      print_measurement(each);
      print_rates(model, each, options);
    }
  }
}

}  // namespace

void add_plan(CLI::App& app) {
  const auto options = std::make_shared<PlanOptions>();
  auto* const command = app.add_subcommand(
      "plan", "Says what every strategy would need of memory, link and time, and which fits.");
  add_options(*command, *options);
  command->callback([options] { plan(*options); });
}

}  // namespace fairshard::cli

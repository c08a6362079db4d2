#include "options.h"

#include "../validators.h"
#include "gpt/sizes.h"

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>

#include <cmath>
#include <filesystem>

namespace fairshard::cli::planning {
namespace {

constexpr int64_t kDefaultContext = 1024;
// What is beyond these is a mistake.
constexpr int64_t kMostParameters = 1'000'000'000'000'000;
constexpr int64_t kMostOfGpt = 1 << 20;
constexpr int64_t kMostThreads = 1024;
constexpr double kFastest = 1e9;

void add_model_options(CLI::App& command, PlanOptions& options) {
  std::vector<std::string> names;
  for (const auto& size : gpt::named_sizes()) {
    names.push_back(size.name);
  }
  auto* const size = command.add_option("--size", options.size, "a size of the trainer's GPT")
                         ->check(CLI::IsMember(names));
  auto* const path = command.add_option(
      "--model", options.path,
      "instead: the folder of a model, or a safetensors file or a checkpoint for its tensors");
  auto* const count = command.add_option("--parameters", options.parameters,
                                         "instead: so many parameters, of nothing in particular");
  count->check(whole_number(1, kMostParameters))->excludes(size)->excludes(path);
  path->excludes(size);
  command.add_option("--layers", options.layers, "instead of the size's")
      ->check(whole_number(1, kMostOfGpt));
  command.add_option("--width", options.width, "instead of the size's")
      ->check(whole_number(1, kMostOfGpt));
  command.add_option("--heads", options.heads, "instead of the size's")
      ->check(whole_number(1, kMostOfGpt));
  command.add_option("--context", options.context, "tokens per window, instead of the size's")
      ->check(whole_number(1, kMostOfGpt));
}

void add_machine_options(CLI::App& command, PlanOptions& options) {
  const auto bytes = CLI::AsSizeValue(/*kb_is_1000=*/false);
  command.add_option("--device-memory", options.device_memory, "of each rank, for instance 80GB")
      ->transform(bytes);
  command.add_option("--host-memory", options.host_memory, "for each rank")->transform(bytes);
  const auto add = [&](const char* name, double& value, const char* meaning) {
    command.add_option(name, value, meaning)
        ->check(number_from(0, false, kFastest))
        ->capture_default_str();
  };
  add("--link", options.link_gbit, "between ranks, each way, Gbit/s");
  add("--compute", options.compute_tflops, "what a rank reaches in matrix products, TFLOP/s");
  add("--host-link", options.host_link_gbyte, "between device and host, each way, GB/s");
  add("--optimizer-rate", options.optimizer_gparam, "parameters stepped on the device, 1e9/s");
  add("--host-optimizer-rate", options.host_optimizer_gparam, "and on the host, 1e9/s");
}

void add_measuring_options(CLI::App& command, PlanOptions& options) {
  auto* const measures = command.add_flag(
      "--measure", options.measures,
      "run a few steps of 'fairshard train' for the best strategy (or those of --strategy)");
  auto& measuring = options.measuring;
  command.add_option("--steps", measuring.steps, "steps to measure")
      ->check(CLI::Range(2, 1000))
      ->capture_default_str()
      ->needs(measures);
  command.add_option("--data", measuring.data, "text to train on")
      ->check(CLI::ExistingPath)
      ->needs(measures);
  command.add_option("--threads", measuring.threads, "per rank; 0 shares the cores")
      ->check(whole_number(0, kMostThreads))
      ->needs(measures);
}

}  // namespace

Machine PlanOptions::machine() const {
  constexpr double kGiga = 1e9;
  constexpr double kTera = 1e12;
  constexpr double kBitsPerByte = 8;
  return {link_gbit * kGiga / kBitsPerByte, compute_tflops * kTera, host_link_gbyte * kGiga,
          optimizer_gparam * kGiga, host_optimizer_gparam * kGiga};
}

ModelShape PlanOptions::model() const {
  if (parameters > 0) {
    return shape_of_count(parameters);
  }
  if (std::filesystem::exists(path + "/config.json")) {
    return shape_of_hub(path, context);
  }
  if (!path.empty()) {
    return shape_of_path(path);
  }
  gpt::GptOptions options = gpt::size_named(size);
  const auto choose = [](int64_t given, int64_t own) { return given > 0 ? given : own; };
  options.layers(choose(layers, options.layers()))
      .width(choose(width, options.width()))
      .heads(choose(heads, options.heads()))
      .context(choose(context, options.context()));
  TORCH_CHECK_VALUE(options.width() % options.heads() == 0, "--width ", options.width(),
                    " is not a multiple of --heads ", options.heads());
  const double count = 12.0 * static_cast<double>(options.layers()) *
                       std::pow(static_cast<double>(options.width()), 2);
  TORCH_CHECK_VALUE(count <= static_cast<double>(kMostParameters), "--layers ", options.layers(),
                    " of --width ", options.width(), " have about ", count,
                    " parameters, and no more than ", kMostParameters, " are planned for");
  return shape_of_gpt(size, options);
}

int64_t PlanOptions::context_of(const ModelShape& model) const {
  return model.is_trainable() ? model.window() : context > 0 ? context : kDefaultContext;
}

void add_options(CLI::App& command, PlanOptions& options) {
  add_model_options(command, options);
  command.add_option("--ranks", options.workload.ranks, "that train together")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command.add_option("--batch", options.workload.batch, "windows per step, of all ranks together")
      ->check(whole_number(1, kMostOfGpt))
      ->capture_default_str();
  command.add_option("--slices", options.slices, "of a model that is paged (--offload)")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command.add_option("--amp", options.amp, "matrix products in bfloat16: none, bf16 or both")
      ->check(CLI::IsMember({"none", "bf16", "both"}))
      ->capture_default_str();
  command.add_option("--strategy", options.only, "only these, as the table names them");
  add_machine_options(command, options);
  command.add_option("--device", options.measuring.device, "where ranks compute")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->default_str("cuda");
  options.measuring.device = "cuda";
  command.add_flag("--json", options.is_json, "for programs");
  add_measuring_options(command, options);
}

}  // namespace fairshard::cli::planning

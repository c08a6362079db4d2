#include "gpt/command_line.h"

#include <CLI/CLI.hpp>
#include <c10/util/StringUtil.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <string>

namespace gpt {
namespace {

constexpr int kBadOption = 2;
constexpr int64_t kMaxLocalRanks = 256;
constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxSize = int64_t{1} << 30;

/// CLI11's own validators speak of floating point limits where a whole number is meant.
CLI::Validator whole_number(int64_t least, int64_t most) {
  const auto check = [=](const std::string& text) -> std::string {
    int64_t value = 0;
    const auto* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const bool is_good = error == std::errc() && stop == end && least <= value && value <= most;
    return is_good ? "" : c10::str(text, " is not a whole number from ", least, " to ", most);
  };
  return CLI::Validator(check, "");
}

CLI::Validator positive_number() {
  const auto check = [](const std::string& text) -> std::string {
    double value = 0;
    const bool is_good =
        CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value > 0;
    return is_good ? "" : text + " is not a positive, finite number";
  };
  return CLI::Validator(check, "");
}

void add_data_option(CLI::App& app, std::string& data) {
  data = FAIRSHARD_DEFAULT_DATA;
  app.add_option("--data", data, "text to train on: a file or a folder")
      ->check(CLI::ExistingPath)
      ->required(data.empty());
}

void add_model_options(CLI::App& app, GptOptions& model) {
  app.add_option("--context", model.context(), "bytes per window")
      ->check(whole_number(1, kMaxSize));
  app.add_option("--layers", model.layers(), "blocks of the model")
      ->check(whole_number(1, kMaxSize));
  app.add_option("--width", model.width(), "features per byte, a multiple of --heads")
      ->check(whole_number(1, kMaxSize));
  app.add_option("--heads", model.heads(), "attention heads")->check(whole_number(1, kMaxSize));
}

void add_training_options(CLI::App& app, TrainOptions& train) {
  app.add_option("--steps", train.steps(), "steps to train for")->check(whole_number(1, kMaxSize));
  app.add_option("--batch", train.batch(), "windows per rank and step")
      ->check(whole_number(1, kMaxSize));
  app.add_option("--lr", train.lr(), "highest learning rate")->check(positive_number());
  app.add_option("--seed", train.seed(), "of the first weights and of the order of the text")
      ->check(whole_number(0, std::numeric_limits<int64_t>::max()));
  app.add_option("--device", train.device(), "auto is cuda where there is a GPU, else cpu")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  app.add_option("--shard", train.shard(),
                 "what each rank holds only its share of: none, the optimizer's state, or that and "
                 "the gradients")
      ->check(CLI::IsMember({"none", "optimizer", "gradients"}));
}

void add_rank_options(CLI::App& app, CommandLine& command_line) {
  app.add_option("--ranks", command_line.ranks,
                 "local ranks to start; torchrun, mpirun or srun choose their own number")
      ->check(whole_number(1, kMaxLocalRanks));
  app.add_option("--threads", command_line.train.threads(),
                 "threads per rank; 0 shares the cores among the ranks")
      ->check(whole_number(0, kMaxThreads));
  app.add_option("--timeout-s", command_line.timeout_s, "longest wait for another rank, in seconds")
      ->check(positive_number());
}

/// What one option's validator cannot see.
void check_together(const CLI::App& app, const CommandLine& command_line,
                    const fairshard::comm::Environment& environment) {
  const auto& train = command_line.train;
  if (train.model().width() % train.model().heads() != 0) {
    throw CLI::ValidationError(
        "--width",
        c10::str(train.model().width(), " is not a multiple of --heads ", train.model().heads()));
  }
  if (environment.origin != "none" && app.count("--ranks") > 0 &&
      command_line.ranks != environment.world_size) {
    throw CLI::ValidationError("--ranks",
                               c10::str(command_line.ranks, " contradicts ", environment.origin,
                                        ", which has started ", environment.world_size));
  }
}

}  // namespace

std::optional<int> parse_command_line(int argc, char** argv,
                                      const fairshard::comm::Environment& environment,
                                      CommandLine& command_line) {
  CLI::App app("Trains a small byte-level GPT on several ranks.", "fairshard-gpt");
  app.option_defaults()->always_capture_default();
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return c10::str("fairshard-gpt: ", error.what(), " (--help lists the options)\n");
  });
  add_data_option(app, command_line.data);
  add_training_options(app, command_line.train);
  add_model_options(app, command_line.train.model());
  add_rank_options(app, command_line);
  try {
    app.parse(argc, argv);
    check_together(app, command_line, environment);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadOption;
  }
  return std::nullopt;
}

}  // namespace gpt

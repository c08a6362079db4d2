// fairshard sample: text from what was trained.
#include "commands.h"
#include "folders.h"
#include "gpt/generate.h"
#include "saved_model.h"

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <string>

namespace fairshard::cli {
namespace {

struct SampleOptions {
  std::string folder;
  std::string prompt;
  int64_t bytes = 400;
  double temperature = 0.8;
  uint64_t seed = 0;
};

void sample(const SampleOptions& options) {
  gpt::Gpt model = load_gpt(find_checkpoint(options.folder));
  std::cout << options.prompt << std::flush;
  gpt::generate(model, options.prompt,
                gpt::GenerateOptions()
                    .bytes(options.bytes)
                    .temperature(options.temperature)
                    .seed(options.seed),
                [](char byte) { std::cout << byte << std::flush; });
  std::cout << std::endl;
}

}  // namespace

void add_sample(CLI::App& app) {
  const auto options = std::make_shared<SampleOptions>();
  auto* const command =
      app.add_subcommand("sample", "Writes text with a model that `fairshard train` has saved.");
  command->option_defaults()->always_capture_default();
  command
      ->add_option("CKPT", options->folder, "a checkpoint, or a folder of them (then the newest)")
      ->required();
  command->add_option("--prompt", options->prompt, "what the text begins with");
  command->add_option("--bytes", options->bytes, "how many to add")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command
      ->add_option("--temperature", options->temperature,
                   "below 1 is more certain, 0 takes the likeliest byte")
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--seed", options->seed, "the same seed gives the same text");
  command->callback([options] { sample(*options); });
}

}  // namespace fairshard::cli

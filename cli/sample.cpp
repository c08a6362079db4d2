// fairshard sample: text from what was trained.
#include "commands.h"
#include "folders.h"
#include "gpt/generate.h"
#include "saved_hub_model.h"
#include "saved_model.h"
#include <fairshard/models/folder.h>
#include <fairshard/models/generate.h>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>
#include <torch/cuda.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace fairshard::cli {
namespace {

struct SampleOptions {
  std::string folder;
  std::string prompt;
  std::vector<int64_t> tokens;
  int64_t count = 400;
  double temperature = 0.8;
  uint64_t seed = 0;
  std::string device = "auto";
};

bool is_model_folder(const std::string& folder) {
  return std::filesystem::exists(folder + "/config.json");
}

/// A number, a list of them, or nothing.
std::vector<int64_t> end_tokens_of(const models::ModelConfig& config) {
  const auto value = nlohmann::json::parse(config.json).value("eos_token_id", nlohmann::json());
  if (value.is_number_integer()) {
    return {value.get<int64_t>()};
  }
  return value.is_array() ? value.get<std::vector<int64_t>>() : std::vector<int64_t>();
}

models::GenerateOptions generate_options(const SampleOptions& options) {
  return models::GenerateOptions()
      .tokens(options.count)
      .temperature(options.temperature)
      .seed(options.seed);
}

void sample_tokens(models::CausalModel& model, const SampleOptions& options) {
  const char* space = "";
  const auto show = [&](int64_t token) {
    std::cout << space << token << std::flush;
    space = " ";
  };
  for (const int64_t token : options.tokens) {
    show(token);
  }
  models::generate(model, options.tokens,
                   generate_options(options).stop(end_tokens_of(model->config())), show);
}

/// Of a model that was trained on bytes.
void sample_bytes(models::CausalModel& model, const SampleOptions& options) {
  constexpr int64_t kBytes = 256;
  constexpr const char* kNoByte = "\uFFFD";
  TORCH_CHECK_VALUE(model->config().vocab_size >= kBytes, "the model of ", options.folder,
                    " has a vocab_size of ", model->config().vocab_size,
                    ", so that bytes are no tokens of it: give --tokens");
  const std::string text = options.prompt.empty() ? "\n" : options.prompt;
  std::vector<int64_t> prompt;
  for (const char byte : text) {
    prompt.push_back(static_cast<unsigned char>(byte));
  }
  std::cout << options.prompt << std::flush;
  models::generate(model, prompt, generate_options(options), [&](int64_t token) {
    token < kBytes ? std::cout << static_cast<char>(token) : std::cout << kNoByte;
    std::cout << std::flush;
  });
}

void sample_hub_model(models::CausalModel model, const SampleOptions& options) {
  const bool has_gpu = torch::cuda::is_available();
  model->to(options.device == "cuda" || (options.device == "auto" && has_gpu) ? at::kCUDA
                                                                              : at::kCPU);
  if (options.tokens.empty()) {
    TORCH_CHECK_VALUE(!std::filesystem::exists(options.folder + "/tokenizer.json"), options.folder,
                      " has a tokenizer, which this program does not run: give --tokens, which "
                      "transformers' tokenizers make and read");
    sample_bytes(model, options);
  } else {
    sample_tokens(model, options);
  }
}

void sample_gpt(const std::string& checkpoint, const SampleOptions& options) {
  TORCH_CHECK_VALUE(options.tokens.empty(), checkpoint,
                    " has a model of bytes: give --prompt, not --tokens");
  gpt::Gpt model = load_gpt(checkpoint);
  std::cout << options.prompt << std::flush;
  gpt::generate(model, options.prompt,
                gpt::GenerateOptions()
                    .bytes(options.count)
                    .temperature(options.temperature)
                    .seed(options.seed),
                [](char byte) { std::cout << byte << std::flush; });
}

void sample(const SampleOptions& options) {
  if (is_model_folder(options.folder)) {
    sample_hub_model(models::load_model(options.folder), options);
  } else if (const std::string found = find_checkpoint(options.folder); has_hub_model(found)) {
    sample_hub_model(load_hub_model(found), options);
  } else {
    sample_gpt(found, options);
  }
  std::cout << std::endl;
}

}  // namespace

void add_sample(CLI::App& app) {
  const auto options = std::make_shared<SampleOptions>();
  auto* const command =
      app.add_subcommand("sample", "Writes text with a model that `fairshard train` has saved.");
  command->option_defaults()->always_capture_default();
  command
      ->add_option("FROM", options->folder,
                   "a checkpoint, a folder of them (then the newest), or the folder of a model")
      ->required();
  auto* const prompt =
      command->add_option("--prompt", options->prompt, "what the text begins with");
  command
      ->add_option("--tokens", options->tokens,
                   "what it begins with as a model's tokens, with commas between them; then tokens "
                   "are written, up to the model's end of text")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->excludes(prompt);
  command->add_option("--bytes,--count", options->count, "how many bytes or tokens to add")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  command
      ->add_option("--temperature", options->temperature,
                   "below 1 is more certain, 0 takes the likeliest")
      ->check(CLI::Range(0.0, 100.0));
  command->add_option("--seed", options->seed, "the same seed gives the same text");
  command
      ->add_option("--device", options->device,
                   "where a model computes; auto is cuda where there is a GPU, else cpu")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  command->callback([options] { sample(*options); });
}

}  // namespace fairshard::cli

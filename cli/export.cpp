// fairshard export: the model of a checkpoint, as transformers keeps models.
#include "commands.h"
#include "folders.h"
#include "saved_hub_model.h"

#include <CLI/CLI.hpp>

#include <map>
#include <memory>
#include <string>

namespace fairshard::cli {

void add_export(CLI::App& app) {
  struct Options {
    std::string checkpoint;
    std::string folder;
    std::string dtype = "float32";
  };
  const std::map<std::string, at::ScalarType> dtypes = {
      {"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"float16", at::kHalf}};
  const auto options = std::make_shared<Options>();
  auto* const command = app.add_subcommand(
      "export",
      "Writes the model of a checkpoint of `fairshard train --model` to a folder that transformers "
      "loads.");
  command->add_option("CKPT", options->checkpoint, "a checkpoint, or a folder of them (the newest)")
      ->required();
  command->add_option("DIR", options->folder, "the folder to write")->required();
  command->add_option("--dtype", options->dtype, "of the weights")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  command->callback([options, dtypes] {
    export_hub_model(find_checkpoint(options->checkpoint), options->folder,
                     dtypes.at(options->dtype));
  });
}

}  // namespace fairshard::cli

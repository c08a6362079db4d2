// fairshard consolidate: one file of a checkpoint.
#include "commands.h"
#include "folders.h"
#include <fairshard/store/consolidate.h>

#include <CLI/CLI.hpp>

#include <memory>
#include <string>

namespace fairshard::cli {

void add_consolidate(CLI::App& app) {
  struct Options {
    std::string folder;
    std::string file;
    std::string part;
  };
  const auto options = std::make_shared<Options>();
  auto* const command =
      app.add_subcommand("consolidate", "Writes a checkpoint of any number of ranks to one file.");
  command->add_option("DIR", options->folder, "a checkpoint, or a folder of them (then the newest)")
      ->required();
  command->add_option("OUT", options->file, "the safetensors file to write")->required();
  command->add_option("--part", options->part,
                      "only this part, under its own names: --part model gives a file of weights");
  command->callback([options] {
    store::consolidate(find_checkpoint(options->folder), options->file, options->part);
  });
}

}  // namespace fairshard::cli

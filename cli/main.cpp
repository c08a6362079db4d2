// fairshard: training, and tools around it.
#include "commands.h"
#include <fairshard/comm/reason.h>

#include <CLI/CLI.hpp>

#include <iostream>

int main(int argc, char** argv) {
  CLI::App app("Training with fairshard, and tools around it.", "fairshard");
  app.require_subcommand(1);
  fairshard::cli::add_consolidate(app);
  fairshard::cli::add_inspect(app);
  fairshard::cli::add_plan(app);
  fairshard::cli::add_report(app);
  fairshard::cli::add_sample(app);
  fairshard::cli::add_train(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    constexpr int kBadCommand = 2;
    return app.exit(error) == 0 ? 0 : kBadCommand;
  } catch (const std::exception& error) {
    std::cerr << "fairshard: " << fairshard::comm::reason_of(error) << "\n";
    return 1;
  }
  return 0;
}

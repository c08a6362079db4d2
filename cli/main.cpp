// fairshard: training, and tools around it.
#include "commands.h"
#include "ended.h"
#include <fairshard/comm/reason.h>

#include <CLI/CLI.hpp>
#include <torch/version.h>

#include <iostream>
#include <string>

namespace {

constexpr int kBadCommand = 2;

/// CLI11 only says that there must be a command. Returns what to say instead, or nothing.
std::string refusal_of(const CLI::App& app, const std::string& word) {
  std::string names;
  for (const CLI::App* const command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == word) {
      return "";
    }
    names += " " + command->get_name();
  }
  const bool is_option = word.empty() || word[0] == '-';
  return is_option ? "" : "there is no command '" + word + "'; there are:" + names;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Training with fairshard, and tools around it.", "fairshard");
  app.require_subcommand(1);
  app.set_version_flag("--version", "fairshard " FAIRSHARD_VERSION " with torch " TORCH_VERSION);
  fairshard::cli::add_completion(app);
  fairshard::cli::add_consolidate(app);
  fairshard::cli::add_create(app);
  fairshard::cli::add_doctor(app);
  fairshard::cli::add_export(app);
  fairshard::cli::add_inspect(app);
  fairshard::cli::add_plan(app);
  fairshard::cli::add_report(app);
  fairshard::cli::add_sample(app);
  fairshard::cli::add_train(app);
  if (const std::string refusal = argc > 1 ? refusal_of(app, argv[1]) : ""; !refusal.empty()) {
    std::cerr << "fairshard: " << refusal << "\n";
    return kBadCommand;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadCommand;
  } catch (const fairshard::cli::Ended& end) {
    if (const std::string message = end.what(); !message.empty()) {
      std::cerr << "fairshard: " << message << "\n";
    }
    return end.exit_code();
  } catch (const std::exception& error) {
    std::cerr << "fairshard: " << fairshard::comm::reason_of(error) << "\n";
    return 1;
  }
  return 0;
}

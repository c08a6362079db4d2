#pragma once
// From the command line and a file to options.

#include "options.h"

#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace fairshard::cli::training {

/// Gives the command all of its options, which are in place when its callback runs finish().
class TrainCommandLine {
 public:
  TrainCommandLine(CLI::App& command, TrainOptions& options);

  /// Reads the file of --config, if there is one, and checks what single options cannot see.
  /// Throws what CLI11 throws for bad options.
  void finish();

 private:
  void read_config();
  void check_resume_from() const;
  void list_options();

  CLI::App& command_;
  TrainOptions& options_;
  std::string config_;
};

}  // namespace fairshard::cli::training

#pragma once
// From the command line to options.

#include "gpt/trainer.h"
#include <fairshard/comm/environment.h>

#include <optional>
#include <string>

namespace gpt {

struct CommandLine {
  TrainOptions train;
  /// A file or a folder.
  std::string data;
  /// Local ranks to start; of no use where a launcher has started them.
  int ranks = 2;
  double timeout_s = 300;
};

/// Returns the exit code if the program should end now: 0 after --help, 2 after a bad option, which
/// is then explained on standard error. `environment` says whether a launcher has chosen the ranks.
std::optional<int> parse_command_line(int argc, char** argv,
                                      const fairshard::comm::Environment& environment,
                                      CommandLine& command_line);

}  // namespace gpt

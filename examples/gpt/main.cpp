// fairshard-gpt: trains a byte-level GPT on ranks that it starts itself or that a launcher started.

#include "gpt/command_line.h"
#include "gpt/corpus.h"
#include "gpt/trainer.h"
#include <fairshard/comm/environment.h>
#include <fairshard/comm/init.h>
#include <fairshard/comm/launch.h>
#include <fairshard/comm/reason.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <iostream>
#include <string>

namespace {

namespace comm = fairshard::comm;

int fail(int rank, std::string reason) {
  std::ranges::replace(reason, '\n', ' ');
  // In one piece, as other ranks may write at the same time.
  std::cerr << c10::str("fairshard-gpt: rank ", rank, ": ", reason, "\n") << std::flush;
  return 1;
}

int run_local_ranks(const gpt::CommandLine& command_line, const gpt::Corpus& corpus) {
  const auto options =
      comm::LaunchOptions().timeout_s(command_line.timeout_s).threads(command_line.train.threads());
  try {
    comm::launch(
        command_line.ranks,
        [&](const comm::Group& group) { gpt::train(group, corpus, command_line.train); }, options);
  } catch (const comm::LaunchError& error) {
    return fail(error.rank(), error.reason());
  }
  return 0;
}

int run_as_rank(const comm::Environment& environment, const gpt::CommandLine& command_line,
                const gpt::Corpus& corpus) {
  const auto options = comm::GroupOptions().timeout_s(command_line.timeout_s);
  gpt::train(comm::init_process_group(environment, options), corpus, command_line.train);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  comm::Environment environment;
  try {
    environment = comm::read_environment();
    gpt::CommandLine command_line;
    if (const auto code = gpt::parse_command_line(argc, argv, environment, command_line)) {
      return *code;
    }
    // Before any rank starts: a bad path is then one clear message, and forked ranks share the
    // text.
    const gpt::Corpus corpus(command_line.data,
                             gpt::CorpusOptions().context(command_line.train.model().context()));
    return environment.origin == "none" ? run_local_ranks(command_line, corpus)
                                        : run_as_rank(environment, command_line, corpus);
  } catch (const std::exception& error) {
    return fail(environment.rank, comm::reason_of(error));
  }
}

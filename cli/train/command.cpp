// fairshard train: trains a byte-level GPT on ranks that it starts itself or that a launcher
// started.
#include "../commands.h"
#include "../ended.h"
#include "command_line.h"
#include "counted_memory.h"
#include "gpt/corpus.h"
#include "options.h"
#include "termination.h"
#include "trainer.h"
#include <fairshard/comm/environment.h>
#include <fairshard/comm/init.h>
#include <fairshard/comm/launch.h>
#include <fairshard/comm/reason.h>
#include <fairshard/comm/waits.h>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>

namespace fairshard::cli::training {
namespace {

/// One line that says which rank has failed.
std::runtime_error failure(int rank, std::string reason) {
  std::ranges::replace(reason, '\n', ' ');
  return std::runtime_error(c10::str("rank ", rank, ": ", reason));
}

void run_local_ranks(const TrainOptions& options, const gpt::Corpus& corpus,
                     Termination& termination) {
  const auto launch_options = comm::LaunchOptions()
                                  .timeout_s(options.timeout_s)
                                  .threads(options.threads)
                                  .backend(options.backend);
  try {
    comm::launch(
        options.ranks,
        [&](const comm::Group& group) { train(group, corpus, options, termination); },
        launch_options);
  } catch (const comm::LaunchError& error) {
    if (const int signal = error.signal(); signal == SIGTERM || signal == SIGINT) {
      const bool has_begun = termination.have_steps_begun();
      throw EndedBySignal(
          signal, c10::str("ended by ", has_begun ? "a second " : "", name_of_signal(signal),
                           has_begun ? "; steps since the last checkpoint are lost"
                                     : " before the first step; nothing was saved"));
    }
    throw failure(error.rank(), error.reason());
  }
}

void run_as_rank(const comm::Environment& environment, const TrainOptions& options,
                 const gpt::Corpus& corpus, Termination& termination) {
  if (!environment.store_file.empty()) {
    termination.remove_at_end(environment.store_file);
  }
  try {
    const auto group_options =
        comm::GroupOptions().timeout_s(options.timeout_s).backend(options.backend);
    train(comm::init_process_group(environment, group_options), corpus, options, termination);
  } catch (const std::exception& error) {
    throw failure(environment.rank, comm::reason_of(error));
  }
}

void run_training(const TrainOptions& options) {
  const auto environment = comm::read_environment();
  count_host_memory();
  // Before any rank starts: a bad path is then one clear message.
  const gpt::Corpus corpus(options.data, options.model.context());
  Termination termination;
  comm::explain_waits_on_signal(SIGUSR1);
  if (environment.origin == "none") {
    run_local_ranks(options, corpus, termination);
  } else {
    run_as_rank(environment, options, corpus, termination);
  }
}

}  // namespace
}  // namespace fairshard::cli::training

namespace fairshard::cli {

void add_train(CLI::App& app) {
  struct Command {
    training::TrainOptions options;
    std::unique_ptr<training::TrainCommandLine> line;
  };
  const auto command = std::make_shared<Command>();
  auto* const added = app.add_subcommand(
      "train", "Trains a byte-level GPT on a text, on one rank or many, with what you choose.");
  command->line = std::make_unique<training::TrainCommandLine>(*added, command->options);
  added->callback([command] {
    command->line->finish();
    training::run_training(command->options);
  });
}

}  // namespace fairshard::cli

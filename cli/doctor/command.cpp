// fairshard doctor: looks, before a run, at what ranks run on and at what is between them.
#include "../commands.h"
#include "../ended.h"
#include "../validators.h"
#include "examination.h"
#include "findings.h"
#include "json.h"
#include "tables.h"
#include <fairshard/comm/init.h>
#include <fairshard/comm/launch.h>
#include <fairshard/comm/reason.h>
#include <fairshard/comm/seconds.h>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <new>
#include <string>

namespace fairshard::cli::doctor {
namespace {

constexpr int kHasFindings = 1;
constexpr int kNotExamined = 2;

/// A number that forked ranks share with their parent.
class SharedNumber {
 public:
  SharedNumber() {
    void* const shared =
        mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(shared != MAP_FAILED, "no memory to share with ranks: ", std::strerror(errno));
    number_ = new (shared) int(0);
  }
  ~SharedNumber() { munmap(number_, sizeof(int)); }
  SharedNumber(const SharedNumber&) = delete;
  SharedNumber& operator=(const SharedNumber&) = delete;

  int& operator*() const { return *number_; }

 private:
  int* number_;
};

/// Prints what all ranks have found, and says with which status to end.
int print(const Measurements& measurements, const DoctorOptions& options) {
  const Findings findings = find_all(measurements);
  if (options.is_json) {
    std::cout << json_of(measurements, findings).dump(2, ' ', false, Json::error_handler_t::replace)
              << "\n";
  } else {
    print_report(measurements, findings, std::cout);
  }
  std::cout.flush();
  return is_fine(findings) ? 0 : kHasFindings;
}

int examine_local_ranks(const DoctorOptions& options) {
  const SharedNumber status;
  const auto examine_rank = [&](const comm::Group& group) {
    const int own =
        examine(group.new_store("doctor"), comm::read_environment(), options,
                [&](const Measurements& measurements) { return print(measurements, options); });
    if (group.rank() == 0) {
      *status = own;
    }
  };
  comm::launch(options.ranks, examine_rank,
               comm::LaunchOptions().timeout_s(options.timeout_s).backend("fairshard"));
  return *status;
}

int run_doctor(const DoctorOptions& options) {
  const auto environment = comm::read_environment();
  if (environment.origin == "none") {
    return examine_local_ranks(options);
  }
  try {
    return examine(comm::meet(environment, options.timeout_s), environment, options,
                   [&](const Measurements& measurements) { return print(measurements, options); });
  } catch (const std::exception& error) {
    throw std::runtime_error(c10::str("rank ", environment.rank, ": ", comm::reason_of(error)));
  }
}

/// c10d warns of what takes long, with stacks: here that is a finding, and said once.
void silence_c10d() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) {
    constexpr int kErrors = 2;
    FLAGS_caffe2_log_level = kErrors;
  }
}

/// Ends the program with the status, or with a line that says why there is none.
void run_and_end(const DoctorOptions& options) {
  silence_c10d();
  int status = 0;
  try {
    status = run_doctor(options);
  } catch (const comm::LaunchError& error) {
    if (const int signal = error.signal(); signal == SIGTERM || signal == SIGINT) {
      throw EndedBySignal(signal, signal == SIGINT ? "ended by SIGINT" : "ended by SIGTERM");
    }
    throw Ended(kNotExamined, comm::reason_of(error));
  } catch (const std::exception& error) {
    throw Ended(kNotExamined, comm::reason_of(error));
  }
  if (status != 0) {
    throw Ended(status, "");
  }
}

void add_options(CLI::App& command, DoctorOptions& options) {
  constexpr int64_t kMostRanks = 256;
  constexpr double kMostMegabytes = 1e6;
  command.add_option("--ranks", options.ranks, "local ranks, where no launcher has started any")
      ->check(whole_number(1, kMostRanks))
      ->capture_default_str();
  command.add_option("--save", options.save,
                     "where checkpoints go: a file of at most 64 MiB is written there");
  command
      .add_option("--seconds", options.seconds,
                  "for all transfers between pairs, one after another")
      ->check(number_from(0, false, comm::kMostSeconds))
      ->capture_default_str();
  command
      .add_option("--megabytes", options.megabytes,
                  "most that one of them sends; all at once, a rank sends 16 times that")
      ->check(number_from(0, false, kMostMegabytes))
      ->capture_default_str();
  command
      .add_option("--answer-s", options.answer_s,
                  "how long a rank, a resolver or a disk may take to answer")
      ->check(number_from(0, false, comm::kMostSeconds))
      ->capture_default_str();
  command
      .add_option("--timeout-s", options.timeout_s, "how long ranks wait for each other to come")
      ->check(number_from(0, false, comm::kMostSeconds))
      ->capture_default_str();
  command.add_flag("--json", options.is_json, "one object with all that was measured and found");
}

}  // namespace
}  // namespace fairshard::cli::doctor

namespace fairshard::cli {

void add_doctor(CLI::App& app) {
  const auto options = std::make_shared<doctor::DoctorOptions>();
  auto* const command = app.add_subcommand(
      "doctor",
      "Measures, before a run, what ranks run on and the links between them, and says what to "
      "change.");
  doctor::add_options(*command, *options);
  command->callback([options] { doctor::run_and_end(*options); });
}

}  // namespace fairshard::cli

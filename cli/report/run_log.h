#pragma once
// report/ makes a page of what `fairshard train --log` wrote. This header: the log, read back.

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

namespace fairshard::cli::report {

/// What a line does not have, or what was not finite when it was written.
constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

struct StepRecord {
  int64_t step = 0;
  double time_s = kMissing;
  double loss = kMissing;
  double tokens_per_s = kMissing;
  double sent_bytes = kMissing;
  /// By kind, for instance "compute"; together the step's time.
  std::map<std::string, double> split_s;
};

struct ValidationRecord {
  int64_t step = 0;
  double time_s = kMissing;
  double loss = kMissing;
};

struct EventRecord {
  int64_t step = 0;
  double time_s = kMissing;
  std::string what;
  std::string detail;
};

struct RankMemory {
  /// By kind, for instance "weights"; of each the largest.
  std::map<std::string, double> bytes;
  double peak_bytes = kMissing;
};

/// What each rank has waited for others, in some steps.
struct WaitsRecord {
  int64_t first_step = 0;
  int64_t last_step = 0;
  std::vector<double> waited_s;  ///< by rank
};

/// One run. A file may hold several stretches of it, each begun by a line of kind "run": what a
/// later stretch did again, or broke off and did not do again, is left out of steps and
/// validations. Times count from the first stretch on, with the time that was lost.
struct RunLog {
  std::string file;
  std::string name;
  /// As a reader sees them: names and values.
  std::map<std::string, std::string> options;
  std::map<std::string, std::string> facts;  ///< device, torch, fairshard
  double ranks = kMissing;
  double parameters = kMissing;
  double tokens_per_step = kMissing;
  double planned_steps = kMissing;

  std::vector<StepRecord> steps;  ///< in their order
  std::vector<ValidationRecord> validations;
  std::vector<EventRecord> events;
  std::map<int64_t, RankMemory> memory;  ///< by rank, of the last stretch that says it
  std::vector<WaitsRecord> waits;        ///< in their order, of the last stretch that says it
  std::string end;                       ///< the reason; empty if there is none
  /// What is odd about the file, in sentences that name it.
  std::vector<std::string> warnings;
};

/// Throws c10::ValueError that names the file, and the line where there is one, for a file that is
/// missing, empty, not such a log, or has a line that is not JSON. A last line that was cut off, or
/// one before a resumption, is passed over with a warning. Unknown keys and kinds are ignored.
RunLog read_run_log(const std::string& file);

}  // namespace fairshard::cli::report

#pragma once
// The log of a run: one JSON object a line. docs/trainer.md lists what is in it.

#include "memory_use.h"
#include "records.h"

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace fairshard::cli::training {

/// What the first line says.
struct RunFacts {
  std::string name;
  /// One JSON object.
  std::string options;
  int ranks = 1;
  int64_t parameters = 0;
  int64_t tokens_per_step = 0;
  std::string device;
  int64_t first_step = 1;
  int64_t steps = 0;
};

/// Writes if it has a path, and does nothing otherwise. Lines are complete, and with the system,
/// when a call returns.
class RunLog {
 public:
  RunLog() = default;
  /// `is_resumed` adds to a file that is there; otherwise it is replaced.
  RunLog(const std::string& path, bool is_resumed);

  void run(const RunFacts& facts);
  void step(const StepRecord& record, int64_t tokens);
  void memory(int64_t step, int rank, const MemoryUse& use);
  /// What each rank has waited for others since the line of this kind before.
  void waits(int64_t step, const std::vector<double>& waited_s);
  void validation(int64_t step, double time_s, double loss);
  /// "saved", "resumed" or "terminated".
  void event(int64_t step, double time_s, const std::string& what, const std::string& detail);
  /// "done" or "terminated".
  void end(int64_t step, double time_s, const std::string& reason);

 private:
  template <typename Line>
  void write(const Line& line);

  std::string path_;
  std::ofstream file_;
};

}  // namespace fairshard::cli::training

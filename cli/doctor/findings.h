#pragma once
// What the measurements say to somebody who wants to train: pure functions of them.

#include "measurements.h"

#include <string>
#include <vector>

namespace fairshard::cli::doctor {

enum class Severity {
  kFails,  ///< a run will not begin, or will not last
  kHurts,  ///< it will be slow, or at risk
  kNote,   ///< worth knowing
};

/// "fails", "hurts" or "note".
const char* name_of(Severity severity);

struct Finding {
  Severity severity = Severity::kNote;
  std::string topic;
  std::vector<int> ranks;
  /// What was seen; of the ranks, if it does not name others.
  std::string seen;
  std::string change;
};

using Findings = std::vector<Finding>;

/// All of them, the worst first. The same of several ranks is one.
Findings find_all(const Measurements& measurements);

/// Whether there is nothing but notes.
bool is_fine(const Findings& findings);

// By topic; find_all() joins what these find.
Findings find_in_network(const Measurements& measurements);
Findings find_in_links(const Measurements& measurements);
Findings find_in_machines(const Measurements& measurements);

/// Whether a rank listens where some others cannot reach it, which find_in_network() says.
bool is_misplaced(const Measurements& measurements, const Machine& machine);

/// By rank; null if it has not answered.
const Machine* machine_of(const Measurements& measurements, int rank);

}  // namespace fairshard::cli::doctor

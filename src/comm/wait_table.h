#pragma once
// What ranks have written about their waits, as a person reads it.

#include "wait_round.h"

#include <string>

namespace fairshard::comm {

struct WaitReport {
  /// One line: who holds up the others.
  std::string verdict;
  /// A row for each rank, and the verdict.
  std::string table;
};

WaitReport report_of(const WaitRound& round);

}  // namespace fairshard::comm

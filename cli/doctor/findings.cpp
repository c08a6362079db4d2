#include "findings.h"

#include <algorithm>

namespace fairshard::cli::doctor {

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::kFails:
      return "fails";
    case Severity::kHurts:
      return "hurts";
    case Severity::kNote:
      break;
  }
  return "note";
}

const Machine* machine_of(const Measurements& measurements, int rank) {
  const auto found = std::ranges::find(measurements.machines, rank, &Machine::rank);
  return found == measurements.machines.end() ? nullptr : &*found;
}

Findings find_all(const Measurements& measurements) {
  Findings all;
  for (const auto& find : {find_in_network, find_in_links, find_in_machines}) {
    for (const auto& finding : find(measurements)) {
      const auto same = std::ranges::find_if(all, [&](const Finding& other) {
        return other.severity == finding.severity && other.seen == finding.seen &&
               other.change == finding.change;
      });
      if (same == all.end()) {
        all.push_back(finding);
      } else {
        same->ranks.insert(same->ranks.end(), finding.ranks.begin(), finding.ranks.end());
      }
    }
  }
  std::ranges::stable_sort(all, {}, &Finding::severity);
  return all;
}

bool is_fine(const Findings& findings) {
  return std::ranges::all_of(
      findings, [](const Finding& finding) { return finding.severity == Severity::kNote; });
}

}  // namespace fairshard::cli::doctor

#pragma once
// Measurements and findings for people.

#include "findings.h"
#include "measurements.h"

#include <ostream>

namespace fairshard::cli::doctor {

/// A table for each topic, and then the findings, the worst first.
void print_report(const Measurements& measurements, const Findings& findings, std::ostream& out);

}  // namespace fairshard::cli::doctor

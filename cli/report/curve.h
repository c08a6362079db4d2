#pragma once
// Curves that a browser can draw: at most some thousands of points of what may be millions.

#include <cstddef>
#include <vector>

namespace fairshard::cli::report {

/// Which points of a curve are kept, at most `limit` (10 or more) of them: the first, the last, and
/// of each stretch the smallest, the largest and one that is missing (NaN).
std::vector<size_t> thinned(const std::vector<double>& values, size_t limit);

/// At each point the mean of those so far, in which a point counts half as much as one that is
/// `half_life` points younger. Missing points (NaN) count nothing.
std::vector<double> running_mean(const std::vector<double>& values, double half_life);

/// Of those that are not missing; NaN if there are none.
double median(std::vector<double> values);
double mean(const std::vector<double>& values);

}  // namespace fairshard::cli::report

#include "curve.h"

#include "run_log.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

namespace fairshard::cli::report {
namespace {

/// The points of one stretch that are kept.
void keep_extremes(const std::vector<double>& values, size_t begin, size_t end,
                   std::set<size_t>& kept) {
  size_t least = end, most = end, missing = end;
  for (size_t i = begin; i < end; ++i) {
    if (std::isnan(values[i])) {
      missing = std::min(missing, i);
      continue;
    }
    least = least == end || values[i] < values[least] ? i : least;
    most = most == end || values[i] > values[most] ? i : most;
  }
  for (const size_t i : {least, most, missing}) {
    if (i < end) {
      kept.insert(i);
    }
  }
}

}  // namespace

std::vector<size_t> thinned(const std::vector<double>& values, size_t limit) {
  std::vector<size_t> all(values.size());
  std::iota(all.begin(), all.end(), size_t{0});
  if (values.size() <= limit) {
    return all;
  }
  const size_t stretches = (limit - 2) / 3;
  std::set<size_t> kept{0, values.size() - 1};
  for (size_t i = 0; i < stretches; ++i) {
    keep_extremes(values, i * values.size() / stretches, (i + 1) * values.size() / stretches, kept);
  }
  return {kept.begin(), kept.end()};
}

std::vector<double> running_mean(const std::vector<double>& values, double half_life) {
  const double decay = std::exp2(-1 / half_life);
  double sum = 0, weight = 0;
  std::vector<double> means;
  means.reserve(values.size());
  for (const double value : values) {
    if (!std::isnan(value)) {
      sum = decay * sum + value;
      weight = decay * weight + 1;
    }
    means.push_back(weight > 0 ? sum / weight : kMissing);
  }
  return means;
}

double median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return std::isnan(value); });
  if (values.empty()) {
    return kMissing;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double mean(const std::vector<double>& values) {
  double sum = 0, count = 0;
  for (const double value : values) {
    if (!std::isnan(value)) {
      sum += value;
      ++count;
    }
  }
  return count > 0 ? sum / count : kMissing;
}

}  // namespace fairshard::cli::report

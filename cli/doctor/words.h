#pragma once
// Ranks, rates and times for people.

#include "../readable.h"

#include <string>
#include <vector>

namespace fairshard::cli::doctor {

/// Of so many numbers in a row only the ends: "0-3,8".
inline std::string ranges(const std::vector<int>& numbers, size_t in_a_row = 2,
                          const char* between = ",") {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) {
      ++end;
    }
    end = end - i < in_a_row ? i + 1 : end;
    text += (text.empty() ? "" : between) + std::to_string(numbers[i]);
    text += end - i > 1 ? "-" + std::to_string(numbers[end - 1]) : "";
    i = end;
  }
  return text;
}

/// "rank 2", "ranks 0, 1" or "ranks 0-2, 5".
inline std::string ranks_text(const std::vector<int>& ranks) {
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges(ranks, 3, ", ");
}

/// With three figures at most, and a unit.
inline std::string with_unit(double value, const char* unit) {
  return with_digits(value, value < 10 ? 1 : 0) + " " + unit;
}

/// For instance "9.8 Mbit/s".
inline std::string readable_rate(double bytes_per_s) {
  const double mbit = bytes_per_s * 8 / 1e6;
  return mbit < 1      ? with_unit(mbit * 1000, "kbit/s")
         : mbit < 1000 ? with_unit(mbit, "Mbit/s")
                       : with_unit(mbit / 1000, "Gbit/s");
}

/// For instance "45 us".
inline std::string readable_delay(double seconds) {
  return seconds < 1e-3 ? with_unit(seconds * 1e6, "us")
         : seconds < 1  ? with_unit(seconds * 1e3, "ms")
                        : with_unit(seconds, "s");
}

/// Bytes, where less than 0 says something else.
inline std::string bytes_or(int64_t bytes, const char* otherwise) {
  return bytes < 0 ? otherwise : readable_bytes(static_cast<double>(bytes));
}

}  // namespace fairshard::cli::doctor

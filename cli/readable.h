#pragma once
// Numbers for people.

#include <array>
#include <cstdio>
#include <string>

namespace fairshard::cli {

inline std::string with_digits(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

/// For instance "1.5 GiB", with so many digits after the point.
inline std::string readable_bytes(double bytes, int digits = 1) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return with_digits(bytes, unit == 0 ? 0 : digits) + " " + kUnits[unit];
}

}  // namespace fairshard::cli

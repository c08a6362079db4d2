#pragma once
// Numbers for people.

#include <array>
#include <cstdio>
#include <string>

namespace fairshard::cli::training {

inline std::string with_digits(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

inline std::string readable_bytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  return with_digits(bytes, unit == 0 ? 0 : 2) + " " + kUnits[unit];
}

}  // namespace fairshard::cli::training

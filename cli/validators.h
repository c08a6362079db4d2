#pragma once
// Numbers of a command line. CLI11's own validators let through what is not finite, and speak of
// floating point limits where a whole number is meant.

#include <CLI/CLI.hpp>
#include <c10/util/StringUtil.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace fairshard::cli {

constexpr int64_t kMaxSize = int64_t{1} << 30;

inline CLI::Validator whole_number(int64_t least, int64_t most = kMaxSize) {
  const auto check = [=](const std::string& text) -> std::string {
    int64_t value = 0;
    const auto* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const bool is_good = error == std::errc() && stop == end && least <= value && value <= most;
    return is_good ? "" : c10::str(text, " is not a whole number from ", least, " to ", most);
  };
  return CLI::Validator(check, "");
}

inline CLI::Validator number_from(double least, bool includes_least,
                                  double below = std::numeric_limits<double>::infinity()) {
  const auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    const bool is_good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) &&
                         (includes_least ? value >= least : value > least) && value < below;
    return is_good ? ""
                   : c10::str(text, " is not a number ", includes_least ? "from " : "above ", least,
                              std::isinf(below) ? "" : c10::str(" to below ", below));
  };
  return CLI::Validator(check, "");
}

}  // namespace fairshard::cli

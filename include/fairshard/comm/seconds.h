#pragma once
// How long somebody waits, as options have it.

#include <chrono>

namespace fairshard::comm {

/// The longest time that anybody is made to wait for: clocks and the system's calls count it in
/// fewer bits than a double has. It is 23 days.
constexpr double kMostSeconds = 2e6;

/// A timeout, rounded up. Throws c10::ValueError that names the option if it is not above 0, or is
/// above kMostSeconds.
std::chrono::milliseconds to_timeout(double seconds, const char* option = "timeout_s");

/// The same for a time that may be 0.
std::chrono::milliseconds to_pause(double seconds, const char* option);

}  // namespace fairshard::comm

#pragma once
// A signal that asks ranks what they wait for.

#include <cstdint>

namespace fairshard::comm {

/// From now on this signal is counted. Throws c10::ValueError if it cannot be handled.
void count_wait_signal(int signal);
/// How often it has come to this process.
int64_t wait_signals();
/// Its number; 0 if none was chosen.
int wait_signal();

}  // namespace fairshard::comm

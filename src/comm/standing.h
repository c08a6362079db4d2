#pragma once
// How far a rank has come in a group's collectives, as one of its backends knows it.

#include "awaited.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace fairshard::comm {

/// A collective, as people read of it.
struct NamedCall {
  uint64_t sequence = 0;
  /// For instance: all_reduce #57 of Float[4096] (sum) 'bucket 3'. The same on ranks that agree.
  std::string text;
  std::chrono::steady_clock::time_point since;
};

struct Standing {
  /// Started, and not ended; of several the first. It counts from its start.
  std::optional<NamedCall> current;
  /// The last one that has ended or, where the backend tells no end, was started.
  std::optional<NamedCall> last;
  /// How many were started.
  uint64_t started = 0;
  /// Changes whenever one starts or ends.
  uint64_t moves = 0;
  /// Whom `current` is waiting for, where the backend knows.
  Awaited::Value awaited;
};

}  // namespace fairshard::comm

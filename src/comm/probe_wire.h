#pragma once
// What the two ends of a probed link say to each other.

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fairshard::comm {

using ProbeClock = std::chrono::steady_clock;

/// Each message begins with one. Ranks have one byte order: LibTorch has no other.
struct ProbeFrame {
  enum Kind : uint32_t {
    kHello = 0x66680001,  ///< value: what the called rank has published; answered with the same
    kPing,                ///< answered with the clock, in nanoseconds
    kData,                ///< `bytes` more follow; not answered
    kEnd,                 ///< answered with the rate in bytes per second, and all bytes
  };
  uint32_t kind = 0;
  int32_t rank = 0;  ///< of whom it is from
  uint64_t value = 0;
  uint64_t bytes = 0;
};

/// A part of a frame that has come, or all of it.
struct PartOfFrame {
  std::array<std::byte, sizeof(ProbeFrame)> bytes{};
  size_t have = 0;
};

constexpr size_t kProbeChunk = 32 << 10;

/// How quickly bytes come, in the second half of the time: the first has what buffers on the way
/// and a bucket of tokens have let through at once, and TCP's slow start.
class RateMeter {
 public:
  /// Bytes have come, by now.
  void add(uint64_t bytes, ProbeClock::time_point now);
  uint64_t bytes() const { return bytes_; }
  double bytes_per_s() const;

 private:
  struct Sample {
    ProbeClock::time_point at;
    uint64_t bytes;
  };
  /// The first, the last, and others between them that are not too near to each other.
  std::vector<Sample> samples_;
  uint64_t bytes_ = 0;
};

}  // namespace fairshard::comm

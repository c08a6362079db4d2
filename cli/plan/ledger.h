#pragma once
// Counts bytes as an allocator would.

#include <algorithm>
#include <cstdint>

namespace fairshard::cli::planning {

class MemoryLedger {
 public:
  void take(int64_t bytes) {
    now_ += bytes;
    peak_ = std::max(peak_, now_);
  }
  void give(int64_t bytes) { now_ -= bytes; }
  void reset_peak() { peak_ = now_; }
  int64_t now() const { return now_; }
  int64_t peak() const { return peak_; }

 private:
  int64_t now_ = 0;
  int64_t peak_ = 0;
};

}  // namespace fairshard::cli::planning

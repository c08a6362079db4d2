#pragma once
// What a pager says about itself.

#include <cstdint>
#include <string>

namespace fairshard::page {

/// What a pager has and has done. Bytes moved, waits and fills are those since the last begin().
struct PagerReport {
  int64_t slices = 0;
  int64_t slots = 0;
  int64_t slot_bytes = 0;
  int64_t device_bytes = 0;
  int64_t pinned_bytes = 0;
  int64_t host_bytes = 0;  ///< pinned or not
  int64_t file_bytes = 0;
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;
  int64_t fills = 0;
  int64_t most_filled = 0;  ///< slices that had device memory at one time, ever
  double wait_s = 0;        ///< that the device waited for copies
};

/// Something that took time: "compute", "copy in", "copy out" or "optimizer".
struct Span {
  std::string track;
  std::string name;
  double start_s;
  double end_s;
};

}  // namespace fairshard::page

#pragma once
// Memory as allocators count it: what tensors have now, and the most that they have had.

#include <c10/core/Device.h>

#include <cstdint>

namespace fairshard::cli::training {

/// From now on the tensors of this process in host memory are counted. To be called once, at the
/// start of the program. (CUDA's allocator counts by itself.)
void count_host_memory();

/// Counts the tensors of one device. Local.
class CountedMemory {
 public:
  explicit CountedMemory(c10::Device device) : device_(device) {}

  /// Forgets the peak: from now on it is that of what comes.
  void reset_peak() const;
  int64_t peak_bytes() const;

 private:
  c10::Device device_;
};

}  // namespace fairshard::cli::training

#pragma once
// What a rank's memory is used for.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <vector>

namespace fairshard::cli::training {

/// In bytes. Kinds that begin with host_ are in host memory while another device computes, or
/// beside what its allocator counts; all others are on the device that computes.
struct MemoryUse {
  int64_t weights = 0;
  int64_t gradients = 0;
  int64_t optimizer = 0;
  int64_t buckets = 0;  ///< at most, beside the gradients, while backward reduces them
  int64_t activations = 0;
  int64_t host_weights = 0;  ///< of a paged model, with gradients
  int64_t host_optimizer = 0;
  int64_t files = 0;
  int64_t peak = 0;  ///< the most that tensors had on the device that computes, in one step

  int64_t named() const { return weights + gradients + optimizer + buckets; }
};

/// The memory of tensors, each storage once.
int64_t storage_bytes(const std::vector<at::Tensor>& tensors);

}  // namespace fairshard::cli::training

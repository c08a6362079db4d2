#pragma once
// Host memory of exactly the size that was asked for: page-locked, so that a GPU's copy engines
// reach it, or a file that is mapped. (torch's pinned allocator rounds up to powers of two.)

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

namespace fairshard::page {

/// One mapping. Starts as zeros. Tensors made of it keep it alive.
class HostMemory : public std::enable_shared_from_this<HostMemory> {
 public:
  /// Of the machine's memory. Throws, with the figures, if there is not as much. `pin` locks it for
  /// CUDA.
  static std::shared_ptr<HostMemory> in_ram(int64_t bytes, bool pin);

  /// Of a file in `folder`, whose space is taken now: a full disk throws here, not later. The file
  /// has no name, so nothing is left of it when the process ends.
  static std::shared_ptr<HostMemory> in_file(int64_t bytes, const std::string& folder);

  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  /// A tensor over a part of it.
  at::Tensor tensor(int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides,
                    at::ScalarType dtype);
  /// The same as bytes.
  at::Tensor bytes(int64_t offset, int64_t count);

  int64_t size() const { return size_; }
  bool is_pinned() const { return is_pinned_; }

 private:
  HostMemory(char* data, int64_t size) : data_(data), size_(size) {}
  void pin();

  char* data_;
  int64_t size_;
  bool is_pinned_ = false;
};

/// Bytes that this process may still take: what the kernel says, or the container's limit if that
/// is lower.
int64_t available_host_bytes();

}  // namespace fairshard::page

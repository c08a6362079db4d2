#pragma once
// Memory that segments of a reduction arrive in.

#include <ATen/core/Tensor.h>

#include <mutex>
#include <vector>

namespace fairshard::comm {

/// Blocks are used again and again: fresh memory has a page fault for every page, on the thread
/// that receives. Taken by callers, given back by the progress thread.
class Staging {
 public:
  /// A flat tensor of bytes, of undefined values.
  at::Tensor take(int64_t bytes);
  /// Takes back what take() gave.
  void give_back(const at::Tensor& block);

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> free_;
};

}  // namespace fairshard::comm

#pragma once
// Memory of buckets, used again and again.

#include <ATen/core/Tensor.h>

#include <vector>

namespace fairshard::shard {

class BucketPool {
 public:
  /// A flat tensor of undefined values. `like` gives the device.
  at::Tensor take(int64_t numel, at::ScalarType dtype, const at::Tensor& like);
  /// Takes back what take() gave.
  void give_back(const at::Tensor& flat);
  /// Gives all that is free to the allocator.
  void clear() { free_.clear(); }

 private:
  std::vector<at::Tensor> free_;
};

}  // namespace fairshard::shard

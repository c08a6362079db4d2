#include "bucket_pool.h"

#include "flat_memory.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace fairshard::shard {

at::Tensor BucketPool::take(int64_t numel, at::ScalarType dtype, const at::Tensor& like) {
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const at::Tensor& memory) {
    return memory.numel() >= bytes && memory.device() == like.device();
  });
  at::Tensor memory;
  if (found != free_.end()) {
    memory = std::move(*found);
    free_.erase(found);
  } else {
    free_.clear();  // what is too small now is too small again in the next backward
    memory = empty_flat(bytes, like.options().dtype(at::kByte));
  }
  return memory.narrow(0, 0, bytes).view(dtype);
}

void BucketPool::give_back(const at::Tensor& flat) {
  // All of the memory that flat was cut from.
  free_.push_back(at::empty({0}, flat.options().dtype(at::kByte)).set_(flat.storage()));
}

}  // namespace fairshard::shard

#include <fairshard/shard/exact_copy.h>

#include <ATen/ops/where.h>

namespace fairshard::shard {

void follow_rounded(const at::Tensor& copy, const at::Tensor& rounded, at::ScalarType dtype) {
  const at::Tensor expected = copy.to(dtype).to(rounded.scalar_type());
  copy.copy_(at::where(rounded.eq(expected), copy, rounded.to(copy.scalar_type())));
}

}  // namespace fairshard::shard

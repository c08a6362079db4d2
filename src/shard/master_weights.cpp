#include <fairshard/shard/master_weights.h>

#include <ATen/ops/where.h>

namespace fairshard::shard {

void follow_writes(const at::Tensor& master, const at::Tensor& rounded, at::ScalarType dtype) {
  const at::Tensor expected = master.to(dtype).to(rounded.scalar_type());
  master.copy_(at::where(rounded.eq(expected), master, rounded.to(master.scalar_type())));
}

}  // namespace fairshard::shard

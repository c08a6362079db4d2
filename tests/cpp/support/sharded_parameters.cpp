#include "support/sharded_parameters.h"

#include <ATen/ATen.h>

namespace fairshard::test {

std::vector<shard::Parameter> make_parameters(const std::vector<int64_t>& sizes,
                                              at::ScalarType dtype) {
  std::vector<shard::Parameter> result;
  for (size_t i = 0; i < sizes.size(); ++i) {
    result.push_back({c10::str("p", i), initial_values(i, sizes[i]).to(dtype).requires_grad_()});
  }
  return result;
}

at::Tensor initial_values(size_t i, int64_t size) {
  return at::arange(size, at::kFloat) / 100 + static_cast<double>(i);
}

shard::FlatOptions one_bucket_each() {
  return shard::FlatOptions().layout(shard::LayoutOptions().bucket_bytes(0));
}

void set_reduced(shard::FlatGroup& group, const std::vector<at::Tensor>& gradients) {
  std::vector<bool> has_gradient;
  for (const at::Tensor& gradient : gradients) {
    has_gradient.push_back(gradient.defined());
  }
  auto& shards = group.gradients();
  shards.begin_backward();
  for (size_t b = 0; b < group.layout().buckets().size(); ++b) {
    const shard::FlatBucket& bucket = group.bucket(b);
    const at::Tensor flat = at::zeros({bucket.layout().length()}, bucket.stepped_options());
    for (const shard::Slot& slot : bucket.layout().slots) {
      const at::Tensor& gradient = gradients[slot.parameter];
      if (gradient.defined()) {
        flat.narrow(0, slot.offset, slot.numel).copy_(gradient.flatten());
      }
    }
    shards.range(b).copy_(bucket.shard_of(flat));
    shards.publish(b, has_gradient);
  }
}

at::Tensor part_of(const at::Tensor& whole, const shard::Slice& slice) {
  return whole.flatten().narrow(0, slice.piece.begin, slice.piece.numel());
}

}  // namespace fairshard::test

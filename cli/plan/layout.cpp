#include "layout.h"

#include "../buckets.h"
#include <fairshard/nn/sharded_data_parallel.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>

namespace fairshard::cli::planning {
namespace {

// As page/ chooses them: one slice computes, one is on its way, the gradients of one leave.
constexpr int64_t kPageAlignment = 256;
constexpr int64_t kPageSlots = 3;

std::vector<at::Tensor> without_memory(const ModelShape& model) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : model.parameters) {
    tensors.push_back(
        at::empty({parameter.numel}, at::device(at::kMeta).dtype(at::kFloat)).requires_grad_());
  }
  return tensors;
}

int64_t paged_bytes(const std::vector<at::Tensor>& parameters) {
  int64_t bytes = 0;
  for (const auto& parameter : parameters) {
    bytes += (parameter.numel() * kFloat + kPageAlignment - 1) / kPageAlignment * kPageAlignment;
  }
  return bytes;
}

}  // namespace

shard::ShardLayout bucket_layout(const ModelShape& model, Sharding sharding, int ranks,
                                 const std::vector<size_t>& order) {
  const auto tensors = without_memory(model);
  std::vector<shard::Parameter> parameters;
  for (size_t i = 0; i < tensors.size(); ++i) {
    parameters.push_back({model.parameters[i].name, tensors[i]});
  }
  auto bytes = bucket_bytes(model.parameter_count() * kFloat);
  if (!bytes && sharding == Sharding::kNone) {
    bytes = DataParallelOptions().bucket_bytes();
  }
  return {parameters, ranks, shard::LayoutOptions().bucket_bytes(bytes), order};
}

PageLayout page_layout(const ModelShape& model, int64_t slices) {
  const auto tensors = without_memory(model);
  std::map<const c10::TensorImpl*, size_t> number;
  for (size_t i = 0; i < tensors.size(); ++i) {
    number[tensors[i].unsafeGetTensorImpl()] = i;
  }
  std::vector<std::vector<at::Tensor>> blocks;
  for (const auto& block : model.blocks) {
    blocks.emplace_back();
    for (const size_t parameter : block) {
      blocks.back().push_back(tensors[parameter]);
    }
  }
  const auto slicing = page::slice_blocks(blocks, {}, slices);
  PageLayout layout{slicing.slice_of_block, std::vector<int64_t>(tensors.size(), -1)};
  int64_t slot_bytes = 0;
  layout.host_bytes = 2 * paged_bytes(slicing.common);
  for (size_t i = 0; i < slicing.slices.size(); ++i) {
    const int64_t bytes = paged_bytes(slicing.slices[i]);
    slot_bytes = std::max(slot_bytes, bytes);
    layout.host_bytes += 2 * bytes;
    for (const auto& parameter : slicing.slices[i]) {
      layout.slice_of_parameter[number[parameter.unsafeGetTensorImpl()]] = static_cast<int64_t>(i);
    }
  }
  const auto count = static_cast<int64_t>(slicing.slices.size());
  layout.device_bytes = std::min(count, kPageSlots) * slot_bytes + paged_bytes(slicing.common);
  return layout;
}

}  // namespace fairshard::cli::planning

#include <fairshard/page/slicing.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace fairshard::page {
namespace {

using Sizes = std::vector<int64_t>;

/// Slices of at most `limit` bytes, each as full as can be.
Sizes slices_within(const Sizes& bytes, int64_t limit) {
  Sizes slices;
  int64_t slice = 0;
  int64_t used = 0;
  for (const int64_t own : bytes) {
    if (used + own > limit && used > 0) {
      ++slice;
      used = 0;
    }
    used += own;
    slices.push_back(slice);
  }
  return slices;
}

Sizes smallest_slices(const Sizes& bytes, int64_t num_slices) {
  int64_t low = *std::max_element(bytes.begin(), bytes.end());
  int64_t high = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (slices_within(bytes, middle).back() < num_slices) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return slices_within(bytes, low);
}

}  // namespace

Slicing slice_blocks(const std::vector<std::vector<at::Tensor>>& blocks,
                     const std::vector<at::Tensor>& rest, std::optional<int64_t> num_slices) {
  TORCH_CHECK_VALUE(num_slices.value_or(1) >= 1, "num_slices is ", num_slices.value_or(1),
                    ", but must be at least 1");
  TORCH_CHECK_VALUE(!blocks.empty(), "the model has no blocks to offload");
  Sizes bytes;
  for (const auto& block : blocks) {
    bytes.push_back(0);
    for (const at::Tensor& parameter : block) {
      bytes.back() += static_cast<int64_t>(parameter.nbytes());
    }
  }
  Slicing slicing;
  if (num_slices) {
    slicing.slice_of_block = smallest_slices(bytes, *num_slices);
  } else {
    slicing.slice_of_block.resize(blocks.size());
    std::iota(slicing.slice_of_block.begin(), slicing.slice_of_block.end(), 0);
  }
  slicing.slices.resize(slicing.slice_of_block.back() + 1);

  constexpr int64_t kCommon = -1;
  std::unordered_map<const c10::TensorImpl*, int64_t> slice_of;
  for (const at::Tensor& parameter : rest) {
    slice_of[parameter.unsafeGetTensorImpl()] = kCommon;
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    for (const at::Tensor& parameter : blocks[i]) {
      const int64_t slice = slicing.slice_of_block[i];
      const auto [found, is_new] = slice_of.try_emplace(parameter.unsafeGetTensorImpl(), slice);
      found->second = found->second == slice ? slice : kCommon;
    }
  }
  const auto place = [&](const at::Tensor& parameter) {
    const auto found = slice_of.find(parameter.unsafeGetTensorImpl());
    if (found != slice_of.end()) {
      (found->second == kCommon ? slicing.common : slicing.slices[found->second])
          .push_back(parameter);
      slice_of.erase(found);
    }
  };
  for (const auto& block : blocks) {
    std::for_each(block.begin(), block.end(), place);
  }
  std::for_each(rest.begin(), rest.end(), place);
  return slicing;
}

}  // namespace fairshard::page

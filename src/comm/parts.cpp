#include "parts.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace fairshard::comm {

std::vector<at::Tensor> split_evenly(const at::Tensor& flat, int ranks) {
  const int64_t length = (flat.numel() + ranks - 1) / ranks;
  std::vector<at::Tensor> parts;
  for (int i = 0; i < ranks; ++i) {
    const int64_t begin = std::min(i * length, flat.numel());
    parts.push_back(flat.slice(0, begin, std::min(begin + length, flat.numel())));
  }
  return parts;
}

std::vector<at::Tensor> split_by(const at::Tensor& flat, const Sizes& sizes) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    parts.push_back(flat.narrow(0, begin, size));
    begin += size;
  }
  return parts;
}

Sizes sizes_of_rows(const at::Tensor& tensor, const std::vector<int64_t>& rows, int ranks) {
  const int64_t all = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t row = all == 0 ? 0 : tensor.numel() / all;
  Sizes sizes(rows.empty() ? Sizes(ranks, all / ranks) : rows);
  TORCH_CHECK_VALUE(sizes.size() == static_cast<size_t>(ranks) && total(sizes) == all,
                    "all_to_all: ", all, " rows cannot be divided among ", ranks, " ranks",
                    rows.empty() ? "" : c10::str(" as ", c10::Join(", ", rows)));
  std::transform(sizes.begin(), sizes.end(), sizes.begin(), [&](int64_t n) { return n * row; });
  return sizes;
}

Sizes sizes_of(const std::vector<at::Tensor>& parts) {
  Sizes sizes;
  for (const at::Tensor& part : parts) {
    sizes.push_back(part.defined() ? part.numel() : 0);
  }
  return sizes;
}

Sizes sizes_within(const std::vector<int64_t>& bounds) {
  Sizes sizes;
  for (size_t i = 1; i < bounds.size(); ++i) {
    sizes.push_back(bounds[i] - bounds[i - 1]);
  }
  return sizes;
}

int64_t total(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

bool are_equal(const Sizes& sizes) {
  return std::adjacent_find(sizes.begin(), sizes.end(), std::not_equal_to<>()) == sizes.end();
}

}  // namespace fairshard::comm

#include "chunked_loss.h"

#include <fairshard/nn/checkpoint.h>

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <vector>

namespace fairshard::models {
namespace {

constexpr int64_t kIgnored = -100;
constexpr int64_t kChunkElements = (128 << 20) / sizeof(float);

at::Tensor summed_loss(const at::Tensor& hidden, const at::Tensor& weight,
                       const at::Tensor& labels) {
  const at::Tensor logits = at::linear(hidden, weight).to(at::kFloat);
  return at::cross_entropy_loss(logits, labels, /*weight=*/{}, at::Reduction::Sum, kIgnored);
}

}  // namespace

at::Tensor chunked_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                 const at::Tensor& labels, int64_t chunk) {
  const int64_t positions =
      chunk > 0 ? chunk : std::max<int64_t>(kChunkElements / weight.size(0), 1);
  const auto hiddens = hidden.split(positions);
  const auto targets = labels.split(positions);
  std::vector<at::Tensor> sums;
  for (size_t i = 0; i < hiddens.size(); ++i) {
    sums.push_back(hiddens.size() == 1 ? summed_loss(hidden, weight, labels)
                                       : checkpoint(summed_loss, hiddens[i], weight, targets[i]));
  }
  return at::stack(sums).sum() / labels.ne(kIgnored).sum();
}

}  // namespace fairshard::models

#include "layout.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>

namespace fairshard::outer {

Parameters select_parameters(const Parameters& parameters) {
  Parameters result;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& parameter : parameters) {
    TORCH_CHECK_VALUE(parameter.tensor.defined(), "parameter '", parameter.name, "' is undefined");
    if (parameter.tensor.is_floating_point() && parameter.tensor.numel() > 0 &&
        seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) {
      result.push_back(parameter);
    }
  }
  return result;
}

void assign_fragments(Parameters& parameters, int fragments) {
  TORCH_CHECK_VALUE(static_cast<size_t>(fragments) <= parameters.size(), fragments,
                    " fragments are more than the ", parameters.size(), " parameters");
  int64_t left = 0;
  for (const auto& parameter : parameters) {
    left += parameter.tensor.numel();
  }
  int fragment = 0;
  int64_t filled = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t numel = parameters[i].tensor.numel();
    const int others = fragments - fragment - 1;
    // The next begins when this one has its share of what is left, or must leave one for each.
    const bool has_share = 2 * filled + numel > 2 * left / (others + 1);
    const bool must_end = parameters.size() - i <= static_cast<size_t>(others);
    if (filled > 0 && others > 0 && (has_share || must_end)) {
      left -= filled;
      filled = 0;
      ++fragment;
    }
    parameters[i].group = fragment;
    filled += numel;
  }
}

std::vector<OuterBucket> lay_out(const Parameters& parameters, size_t first, int rank, int ranks,
                                 const OuterOptions& options) {
  const Parameters some(parameters.begin() + static_cast<std::ptrdiff_t>(first), parameters.end());
  int64_t bytes = 0;
  for (const auto& parameter : some) {
    bytes += static_cast<int64_t>(parameter.tensor.nbytes());
  }
  const int64_t bucket_bytes =
      std::max((bytes + options.pieces() - 1) / options.pieces(), options.smallest_piece_bytes());
  std::vector<size_t> order(some.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const shard::ShardLayout plan(
      some, ranks,
      shard::LayoutOptions().bucket_bytes(bucket_bytes).first_bucket_bytes(bucket_bytes), order);
  std::vector<OuterBucket> result;
  for (const shard::Bucket& bucket : plan.buckets()) {
    const shard::Parameter& example = some[bucket.slots.front().parameter];
    const auto dtype = example.tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    auto slots = bucket.slots;
    for (auto& slot : slots) {
      slot.parameter += first;
    }
    result.push_back({.device = example.tensor.device(),
                      .dtype = dtype,
                      .fragment = static_cast<int>(example.group),
                      .slots = std::move(slots),
                      .bounds = bucket.bounds,
                      .begin = bucket.bounds[rank],
                      .end = bucket.bounds[rank + 1],
                      .outer = {},
                      .momentum = {},
                      .error = {},
                      .pending = {},
                      .is_frozen = false});
  }
  return result;
}

at::Tensor pack(const OuterBucket& bucket, const Parameters& parameters,
                const std::vector<at::Tensor>& masters, int64_t begin, int64_t end) {
  const at::Tensor flat = at::zeros({end - begin}, at::device(bucket.device).dtype(bucket.dtype));
  for (const auto& slot : bucket.slots) {
    const int64_t from = std::max(slot.offset, begin);
    const int64_t to = std::min(slot.offset + slot.numel, end);
    if (from < to) {
      const at::Tensor& values =
          masters.empty() ? parameters[slot.parameter].tensor : masters[slot.parameter];
      flat.narrow(0, from - begin, to - from)
          .copy_(values.detach().reshape({-1}).narrow(0, from - slot.offset, to - from));
    }
  }
  return flat;
}

void unpack(const OuterBucket& bucket, const Parameters& parameters,
            const std::vector<at::Tensor>& masters, const at::Tensor& flat, double local_weight) {
  for (const auto& slot : bucket.slots) {
    const at::Tensor& parameter = parameters[slot.parameter].tensor;
    const at::Tensor& target = masters.empty() ? parameter : masters[slot.parameter];
    at::Tensor values = flat.narrow(0, slot.offset, slot.numel).view(target.sizes());
    if (local_weight > 0) {
      values = values.mul(1 - local_weight).add_(target.detach().to(bucket.dtype), local_weight);
    }
    target.copy_(values);
    if (!masters.empty()) {
      parameter.copy_(target);
    }
  }
}

std::vector<Run> runs_of(const OuterBucket& bucket, const std::vector<double>& learning_rates,
                         int64_t begin, int64_t end) {
  std::vector<Run> runs;
  if (learning_rates.empty()) {
    return runs;
  }
  for (size_t i = 0; i < bucket.slots.size(); ++i) {
    // Padding goes with the parameter before it.
    const int64_t next = i + 1 < bucket.slots.size() ? bucket.slots[i + 1].offset : bucket.length();
    const int64_t from = std::max(bucket.slots[i].offset, begin) - begin;
    const int64_t to = std::min(next, end) - begin;
    const double learning_rate = learning_rates[bucket.slots[i].parameter];
    if (from >= to) {
      continue;
    }
    if (!runs.empty() && runs.back().learning_rate == learning_rate) {
      runs.back().end = to;
    } else {
      runs.push_back({from, to, learning_rate});
    }
  }
  return runs;
}

}  // namespace fairshard::outer

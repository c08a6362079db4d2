#include "reduce.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

void combine(at::Tensor out, const at::Tensor& a, const at::Tensor& b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      at::add_out(out, a, b);
      return;
    case ReduceOp::kMin:
      at::minimum_out(out, a, b);
      return;
    case ReduceOp::kMax:
      at::maximum_out(out, a, b);
      return;
  }
}

}  // namespace

bool is_reducible(at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return true;
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return op != ReduceOp::kAvg;
    default:
      return false;
  }
}

namespace {

/// Sums in the parts' own dtype.
void reduce_plain(const at::Tensor& output, const std::vector<at::Tensor>& parts, int rank,
                  ReduceOp op) {
  // Partial results go where they destroy nothing that is still needed: this rank's own part may
  // be the output's memory, so until that part has been read they are kept in the first one's.
  at::Tensor result = rank <= 1 ? output : parts[0];
  for (size_t i = 1; i < parts.size(); ++i) {
    const at::Tensor left = i == 1 ? parts[0] : result;
    if (static_cast<int>(i) == rank) {
      result = output;
    }
    combine(result, left, parts[i], op);
  }
  if (op == ReduceOp::kAvg) {
    result.mul_(1.0 / static_cast<double>(parts.size()));
  }
  if (!result.is_same(output)) {
    output.copy_(result);
  }
}

/// Sums of half precision in float32, by chunks that stay in the cache.
void reduce_widened(const at::Tensor& output, const std::vector<at::Tensor>& parts, ReduceOp op) {
  constexpr int64_t kChunk = 1 << 15;
  const int64_t numel = output.numel();
  const at::Tensor sums = at::empty({std::min(kChunk, numel)}, output.options().dtype(at::kFloat));
  const at::Tensor wide = at::empty_like(sums);
  for (int64_t begin = 0; begin < numel; begin += kChunk) {
    const int64_t length = std::min(kChunk, numel - begin);
    const at::Tensor target = output.narrow(0, begin, length);
    const at::Tensor sum = output.scalar_type() == at::kFloat ? target : sums.narrow(0, 0, length);
    const at::Tensor next = wide.narrow(0, 0, length);
    sum.copy_(parts[0].narrow(0, begin, length));
    for (size_t i = 1; i < parts.size(); ++i) {
      next.copy_(parts[i].narrow(0, begin, length));
      combine(sum, sum, next, op);
    }
    if (op == ReduceOp::kAvg) {
      sum.mul_(1.0 / static_cast<double>(parts.size()));
    }
    if (!sum.is_same(target)) {
      target.copy_(sum);
    }
  }
}

}  // namespace

void reduce_in_rank_order(const at::Tensor& output, const std::vector<at::Tensor>& parts, int rank,
                          ReduceOp op) {
  if (is_half(parts[0].scalar_type())) {
    reduce_widened(output, parts, op);
  } else {
    reduce_plain(output, parts, rank, op);
  }
}

}  // namespace fairshard::comm

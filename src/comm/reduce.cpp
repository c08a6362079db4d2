#include "reduce.h"

#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

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

void reduce_in_rank_order(const at::Tensor& output, const std::vector<at::Tensor>& parts, int rank,
                          ReduceOp op) {
  const bool widen = is_half(parts[0].scalar_type());
  const auto wide = [&](const at::Tensor& part) { return widen ? part.to(at::kFloat) : part; };
  const bool is_average = op == ReduceOp::kAvg;

  // Partial results go where they destroy nothing that is still needed: this rank's own part may
  // be the output's memory, so until that part has been read they are kept in the first one's.
  at::Tensor result = wide(parts[0]);
  if (!widen && rank <= 1) {
    result = output;
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    const at::Tensor left = i == 1 ? (widen ? result : parts[0]) : result;
    if (!widen && static_cast<int>(i) == rank) {
      result = output;
    }
    combine(result, left, wide(parts[i]), op);
  }
  if (is_average) {
    result.mul_(1.0 / static_cast<double>(parts.size()));
  }
  if (!result.is_same(output)) {
    output.copy_(result);
  }
}

}  // namespace fairshard::comm

#include "reduce.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

void combine(at::Tensor out, const at::Tensor& a, const at::Tensor& b, RedOp op) {
  switch (op) {
    case RedOp::SUM:
    case RedOp::AVG:
      at::add_out(out, a, b);
      return;
    case RedOp::PRODUCT:
      at::mul_out(out, a, b);
      return;
    case RedOp::MIN:
      at::minimum_out(out, a, b);
      return;
    case RedOp::MAX:
      at::maximum_out(out, a, b);
      return;
    case RedOp::BAND:
      at::bitwise_and_out(out, a, b);
      return;
    case RedOp::BOR:
      at::bitwise_or_out(out, a, b);
      return;
    case RedOp::BXOR:
      at::bitwise_xor_out(out, a, b);
      return;
    default:
      TORCH_INTERNAL_ASSERT(false);
  }
}

}  // namespace

bool is_reducible(at::ScalarType dtype, RedOp op) {
  const bool is_sum = op == RedOp::SUM || op == RedOp::AVG || op == RedOp::PRODUCT;
  const bool is_bitwise = op == RedOp::BAND || op == RedOp::BOR || op == RedOp::BXOR;
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return is_sum || op == RedOp::MIN || op == RedOp::MAX;
    case at::kComplexFloat:
    case at::kComplexDouble:
      return is_sum;
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return op != RedOp::AVG && op < RedOp::PREMUL_SUM;
    case at::kBool:
      return is_bitwise || op == RedOp::MIN || op == RedOp::MAX;
    default:
      return false;
  }
}

namespace {

/// Short enough to stay in a core's own cache, and below the length from which ATen shares work
/// among threads (it asks OpenMP, which gives every thread that asks a team of its own: beside the
/// training's own there are no cores for another).
constexpr int64_t kChunk = (1 << 15) - 64;

/// Sums in the parts' own dtype.
void reduce_plain(const at::Tensor& output, const std::vector<at::Tensor>& parts, int rank,
                  RedOp op) {
  // Partial results go where they destroy nothing that is still needed: this rank's own part may
  // be the output's memory, so until that part has been read they are kept in the first one's.
  at::Tensor result = rank <= 1 ? output : parts[0];
  if (parts.size() == 1 && !output.is_alias_of(parts[0])) {
    output.copy_(parts[0]);
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    const at::Tensor left = i == 1 ? parts[0] : result;
    if (static_cast<int>(i) == rank) {
      result = output;
    }
    combine(result, left, parts[i], op);
  }
  if (op == RedOp::AVG) {
    result.mul_(1.0 / static_cast<double>(parts.size()));
  }
}

/// Sums of half precision in float32.
void reduce_widened(const at::Tensor& output, const std::vector<at::Tensor>& parts, RedOp op) {
  const bool is_wide = output.scalar_type() == at::kFloat;
  const at::Tensor sum = is_wide ? output : at::empty_like(output, at::kFloat);
  const at::Tensor next = at::empty_like(sum);
  sum.copy_(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    next.copy_(parts[i]);
    combine(sum, sum, next, op);
  }
  if (op == RedOp::AVG) {
    sum.mul_(1.0 / static_cast<double>(parts.size()));
  }
  if (!is_wide) {
    output.copy_(sum);
  }
}

}  // namespace

void reduce_in_rank_order(const at::Tensor& output, const std::vector<at::Tensor>& parts, int rank,
                          RedOp op) {
  // Autograd has no part in this, and for pieces so short its detour costs as much as the sums.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> chunks(parts.size());
  for (int64_t begin = 0; begin < output.numel(); begin += kChunk) {
    const int64_t length = std::min(kChunk, output.numel() - begin);
    std::transform(parts.begin(), parts.end(), chunks.begin(),
                   [&](const at::Tensor& part) { return part.narrow(0, begin, length); });
    const at::Tensor chunk = output.narrow(0, begin, length);
    if (is_half(chunks[0].scalar_type())) {
      reduce_widened(chunk, chunks, op);
    } else {
      reduce_plain(chunk, chunks, rank, op);
    }
  }
}

}  // namespace fairshard::comm

#include "codes.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <vector>

namespace fairshard::outer {
namespace {

constexpr int64_t kInt8Block = 256;
constexpr int64_t kScaleBytes = 4;

constexpr int64_t kChunk = 4096;  // its places fit into 12 bits
constexpr int64_t kKept = 64;
constexpr int64_t kMagnitudeBytes = 4;
constexpr int64_t kPlaceBytes = kKept * 12 / 8;
constexpr int64_t kCodeBytes = kKept * 2 / 8;
constexpr int64_t kChunkBytes = kMagnitudeBytes + kPlaceBytes + kCodeBytes;

int64_t rows_of(int64_t length, int64_t width) { return (length + width - 1) / width; }

/// As rows of float32, the last of which ends in zeros.
at::Tensor in_rows(const at::Tensor& values, int64_t width) {
  const int64_t rows = rows_of(values.numel(), width);
  const at::Tensor padded = at::zeros({rows * width}, values.options().dtype(at::kFloat));
  padded.narrow(0, 0, values.numel()).copy_(values);
  return padded.view({rows, width});
}

/// Pairs of numbers of 12 bits in three bytes.
at::Tensor pack_places(const at::Tensor& places) {
  const at::Tensor pairs = places.to(at::kInt).view({places.size(0), kKept / 2, 2});
  const at::Tensor first = pairs.select(2, 0);
  const at::Tensor second = pairs.select(2, 1);
  const at::Tensor middle =
      first.bitwise_right_shift(8).bitwise_or(second.bitwise_and(15).bitwise_left_shift(4));
  return at::stack({first.bitwise_and(255), middle, second.bitwise_right_shift(4)}, 2)
      .to(at::kByte)
      .view({places.size(0), kPlaceBytes});
}

at::Tensor unpack_places(const at::Tensor& bytes) {
  const at::Tensor triples = bytes.to(at::kInt).view({bytes.size(0), kKept / 2, 3});
  const at::Tensor middle = triples.select(2, 1);
  const at::Tensor first =
      triples.select(2, 0).bitwise_or(middle.bitwise_and(15).bitwise_left_shift(8));
  const at::Tensor second =
      middle.bitwise_right_shift(4).bitwise_or(triples.select(2, 2).bitwise_left_shift(4));
  return at::stack({first, second}, 2).view({bytes.size(0), kKept}).to(at::kLong);
}

/// Four numbers of 2 bits in a byte.
at::Tensor pack_codes(const at::Tensor& codes) {
  const at::Tensor fours = codes.to(at::kByte).view({codes.size(0), kCodeBytes, 4});
  at::Tensor bytes = fours.select(2, 0);
  for (int64_t i = 1; i < 4; ++i) {
    bytes = bytes.bitwise_or(fours.select(2, i).bitwise_left_shift(2 * i));
  }
  return bytes;
}

at::Tensor unpack_codes(const at::Tensor& bytes) {
  std::vector<at::Tensor> fours;
  for (int64_t i = 0; i < 4; ++i) {
    fours.push_back(bytes.bitwise_right_shift(2 * i).bitwise_and(3));
  }
  return at::stack(fours, 2).view({bytes.size(0), kKept});
}

/// The mean of those magnitudes of each row that are chosen; 0 where none is.
at::Tensor mean_where(const at::Tensor& chosen, const at::Tensor& magnitudes) {
  return magnitudes.mul(chosen).sum({1}).div_(chosen.sum({1}).clamp_min(1));
}

}  // namespace

const Code* code_of(WireFormat format) {
  static constexpr Code kInt8{encode_int8, decode_int8};
  // What is never among the largest fades, as SparseLoCo has it (arXiv 2508.15706).
  static constexpr Code kSparse{encode_sparse, decode_sparse, 0.95};
  return format == WireFormat::kInt8 ? &kInt8 : format == WireFormat::kSparse ? &kSparse : nullptr;
}

at::Tensor encode_int8(const at::Tensor& values) {
  const at::Tensor rows = in_rows(values, kInt8Block);
  const at::Tensor scales = rows.abs().amax({1}, /*keepdim=*/true).div_(127);
  // A block of zeros has scale 0, and codes 0 whatever they are divided by.
  const at::Tensor codes = rows.div(scales.clamp_min(1e-30)).round_().to(at::kChar);
  return at::cat({scales.view(-1).view(at::kByte), codes.view(-1).view(at::kByte)});
}

at::Tensor decode_int8(const at::Tensor& message, int64_t length) {
  const int64_t blocks = rows_of(length, kInt8Block);
  const at::Tensor scales = message.narrow(0, 0, blocks * kScaleBytes).clone().view(at::kFloat);
  const at::Tensor codes = message.narrow(0, blocks * kScaleBytes, blocks * kInt8Block);
  return codes.view(at::kChar)
      .view({blocks, kInt8Block})
      .to(at::kFloat)
      .mul_(scales.view({blocks, 1}))
      .view(-1)
      .narrow(0, 0, length);
}

at::Tensor encode_sparse(const at::Tensor& values) {
  const at::Tensor rows = in_rows(values, kChunk);
  const auto [magnitudes, places] = rows.abs().topk(kKept, 1);
  const at::Tensor is_large = magnitudes.gt(magnitudes.mean({1}, /*keepdim=*/true));
  const at::Tensor scales = at::stack(
      {mean_where(is_large.logical_not(), magnitudes), mean_where(is_large, magnitudes)}, 1);
  const at::Tensor is_negative = rows.gather(1, places).lt(0);
  const at::Tensor codes = is_negative.to(at::kByte).mul(2).add(is_large.to(at::kByte));
  return at::cat({scales.to(at::kBFloat16).view(at::kByte), pack_places(places), pack_codes(codes)},
                 1)
      .view(-1);
}

at::Tensor decode_sparse(const at::Tensor& message, int64_t length) {
  const int64_t chunks = rows_of(length, kChunk);
  const at::Tensor rows = message.view({chunks, kChunkBytes});
  const at::Tensor scales =
      rows.narrow(1, 0, kMagnitudeBytes).contiguous().view(at::kBFloat16).to(at::kFloat);
  const at::Tensor places =
      unpack_places(rows.narrow(1, kMagnitudeBytes, kPlaceBytes).contiguous());
  const at::Tensor codes = unpack_codes(rows.narrow(1, kMagnitudeBytes + kPlaceBytes, kCodeBytes));
  const at::Tensor signs = codes.bitwise_right_shift(1).to(at::kFloat).mul_(-2).add_(1);
  const at::Tensor kept = scales.gather(1, codes.bitwise_and(1).to(at::kLong)).mul_(signs);
  return at::zeros({chunks, kChunk}, kept.options())
      .scatter_(1, places, kept)
      .view(-1)
      .narrow(0, 0, length);
}

}  // namespace fairshard::outer

#pragma once
// Narrow messages: values as bytes that every node gets from every node.

#include <fairshard/outer/options.h>

#include <ATen/core/Tensor.h>

namespace fairshard::outer {

/// Of a format whose messages are gathered instead of summed on the way.
struct Code {
  at::Tensor (*encode)(const at::Tensor& values);
  /// float32 values, as many as were encoded.
  at::Tensor (*decode)(const at::Tensor& message, int64_t length);
  /// How much of what earlier messages left out is added to the next.
  double kept_error = 1;
};

/// Null for formats that are summed on the way.
const Code* code_of(WireFormat format);

/// A scale (float32) for every 256 values, then the codes.
at::Tensor encode_int8(const at::Tensor& values);
at::Tensor decode_int8(const at::Tensor& message, int64_t length);

/// Of every 4096 values the 64 largest, in 116 bytes: two magnitudes (bfloat16), 64 places of 12
/// bits, and 64 codes of 2 bits, which say the sign and which magnitude.
at::Tensor encode_sparse(const at::Tensor& values);
at::Tensor decode_sparse(const at::Tensor& message, int64_t length);

}  // namespace fairshard::outer

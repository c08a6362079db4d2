#pragma once
// The buckets in which gradients travel: `fairshard train` makes them so, and `fairshard plan`
// counts on it.

#include <cstdint>
#include <optional>

namespace fairshard::cli {

/// For a model of so many bytes. Nothing: the library's own choice, which would hold most of a
/// small model in one bucket.
inline std::optional<int64_t> bucket_bytes(int64_t model_bytes) {
  constexpr int64_t kLargeModel = int64_t{64} << 20;
  constexpr int64_t kSmallBucket = int64_t{256} << 10;
  return model_bytes < kLargeModel ? std::optional(kSmallBucket) : std::nullopt;
}

}  // namespace fairshard::cli

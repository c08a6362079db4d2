#pragma once
// What a rank says about a collective: to its user when it fails, and to its peers to agree on it.

#include <fairshard/comm/collectives.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace fairshard::comm {

enum class Kind : int64_t { kAllReduce, kBroadcast, kAllGather, kReduceScatter, kBarrier, kShift };

struct Call {
  Kind kind;
  at::ScalarType dtype;
  int64_t numel;
  ReduceOp op = ReduceOp::kSum;
  /// Of a broadcast, or the distance of a shift, or the number of an all-gather.
  int root = -1;
  /// How the whole tensor, of `numel` elements, is divided; empty if into equal parts.
  Bounds bounds;
  std::string label;
  uint64_t sequence = 0;
  int rank = 0;
  int size = 1;

  /// Every rank's part of the whole tensor, flat. Equal ones, if there are no bounds; the last ones
  /// shorter or empty if it does not divide.
  std::vector<at::Tensor> split(const at::Tensor& whole) const;

  /// For instance: reduce_scatter #12 "bucket 3" of Float[4096] on rank 1 of 4
  std::string describe() const;

  /// For instance: all_reduce #12 of Float[4096] (sum)
  std::string signature() const;
};

/// A call in the form in which it travels ahead of the data (labels stay at home).
using Header = std::array<int64_t, 7>;

Header to_header(const Call& call);
Call from_header(const Header& header, const Call& mine, int rank);

}  // namespace fairshard::comm

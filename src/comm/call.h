#pragma once
// What a rank says about a collective: to its user when it fails, and to its peers to agree on it.

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace fairshard::comm {

enum class Kind : int64_t {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kBarrier,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
};

/// For instance "all_reduce".
const char* kind_name(Kind kind);

struct Call {
  Kind kind = Kind::kBarrier;
  at::ScalarType dtype = at::kByte;
  /// Of the whole tensor, as far as every rank knows it.
  int64_t numel = 0;
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
  int root = -1;
  /// How many elements of the whole tensor each rank has; empty if all have equally many.
  std::vector<int64_t> parts;
  std::string label;
  uint64_t sequence = 0;
  int rank = 0;
  int size = 1;

  /// For instance: reduce_scatter #12 of Float[4096] (sum) 'bucket 3'
  std::string named() const;

  /// For instance: reduce_scatter #12 of Float[4096] (sum) 'bucket 3' on rank 1 of 4
  std::string describe() const;

  /// For instance: all_reduce #12 of Float[4096] (sum)
  std::string signature() const;
};

/// A call in the form in which it travels ahead of the data.
using Header = std::array<int64_t, 8>;

Header to_header(const Call& call);
/// What a peer has called, for a message: of its parts and its label a header has only digests.
std::string describe_peer(const Header& header, const Call& mine);

}  // namespace fairshard::comm

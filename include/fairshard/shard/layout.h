#pragma once
// shard/ partitions parameters across ranks. A ShardLayout says who owns what; a FlatGroup has the
// values in that layout; a GradReducer brings every rank the gradients of what it owns; a
// ShardedStep steps them; a DataParallelEngine drives all of it for a model.

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fairshard::shard {

/// A model's parameter. The name is its identity in messages and checkpoints.
struct Parameter {
  std::string name;
  at::Tensor tensor;
  /// Its parameter group in the optimizer. Different groups have different buckets.
  int64_t group = 0;
};

/// Whether ranks share parameters.
enum class Partition {
  /// Every rank owns an equal range of every bucket; a parameter may be split between ranks.
  kEven,
  /// Every parameter belongs to one rank; ranks get about the same number of elements.
  kTensor,
};

/// Options of a ShardLayout.
struct LayoutOptions {
  // Behaviour
  /// Whether ranks share parameters.
  TORCH_ARG(Partition, partition) = Partition::kEven;

  // Performance
  /// How much a bucket holds before the next one is begun. 0: every parameter has its own. If not
  /// given, see Note [Size of buckets].
  TORCH_ARG(std::optional<int64_t>, bucket_bytes);
  /// Whether small buckets matter more than long messages; see Note [Size of buckets].
  TORCH_ARG(bool, least_memory) = false;
  /// The first bucket is closed as soon as it has so much: communication starts early in backward.
  TORCH_ARG(int64_t, first_bucket_bytes) = 1 << 20;
};

/// Note [Size of buckets]: a few buckets are in memory at a time, beside a rank's own share of the
/// gradients, so they are to be small against the model; but messages are to be long against their
/// latency, and on a GPU every bucket costs the host some launches. By default a bucket is an
/// eighth of the model, with at least 4 MiB for each rank and at most 25 MiB (128 on a GPU); for
/// the least memory, a sixteenth, with at least 1 and at most 25 MiB. Where a rank has all
/// gradients anyway, small buckets would save nothing.

/// Where a parameter lies in its bucket, in elements.
struct Slot {
  size_t parameter;
  int64_t offset;
  int64_t numel;
};

/// Parameters that are communicated together, laid out one after another. Rank r owns the elements
/// from bounds[r] to bounds[r + 1].
struct Bucket {
  std::vector<Slot> slots;
  std::vector<int64_t> bounds;

  int64_t length() const { return bounds.back(); }
};

/// A part of a parameter that one rank owns: the elements from begin to end (in the order of
/// memory), which lie from `offset` on in the rank's range of the bucket.
struct Piece {
  size_t bucket;
  size_t parameter;
  int64_t begin;
  int64_t end;
  int64_t offset;

  int64_t numel() const { return end - begin; }
};

/// Divides parameters among ranks: buckets of one dtype, device, group and kind (trainable or
/// frozen), filled in the order in which gradients arrive. Parameters and ranges start at multiples
/// of 64 bytes: kernels keep their speed, and their results stay bit for bit those of separately
/// allocated tensors. The same on all ranks for the same parameters and order. Immutable: another
/// order of gradients makes another layout.
class ShardLayout {
 public:
  /// `order` lists all parameters as their gradients are expected; without it, the last comes
  /// first.
  ShardLayout(const std::vector<Parameter>& parameters, int ranks,
              const LayoutOptions& options = {}, std::vector<size_t> order = {});

  int ranks() const { return ranks_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The bucket and the slot in it that hold a parameter.
  size_t bucket_of(size_t parameter) const { return places_[parameter].bucket; }
  size_t slot_number_of(size_t parameter) const { return places_[parameter].slot; }
  const Slot& slot_of(size_t parameter) const {
    return buckets_[bucket_of(parameter)].slots[slot_number_of(parameter)];
  }
  /// The order in which the buckets were filled.
  const std::vector<size_t>& order() const { return order_; }
  int64_t range_begin(size_t bucket, int rank) const { return buckets_[bucket].bounds[rank]; }
  int64_t range_length(size_t bucket, int rank) const {
    return buckets_[bucket].bounds[rank + 1] - buckets_[bucket].bounds[rank];
  }
  /// What a rank owns, of all buckets or of one, in the order of its ranges.
  std::vector<Piece> pieces(int rank) const;
  std::vector<Piece> pieces(int rank, size_t bucket) const;

 private:
  struct Place {
    size_t bucket;
    size_t slot;
  };

  int ranks_;
  std::vector<size_t> order_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
};

}  // namespace fairshard::shard

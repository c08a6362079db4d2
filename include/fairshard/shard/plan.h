#pragma once
// shard/ divides parameters among ranks. A ShardPlan says who owns what; FlatParameters holds the
// values in the plan's order; GradReducer brings every rank the gradients of what it owns.

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
  /// Parameters of different groups (of an optimizer's options) are kept in different buckets.
  int64_t group = 0;
};

/// Whether ranks share parameters.
enum class Partition {
  /// Every rank owns an equal range of every bucket; a parameter may be split between ranks.
  kEven,
  /// Every parameter belongs to one rank; ranks get about the same number of elements.
  kTensor,
};

/// What a ShardPlan is made with.
struct PlanOptions {
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
/// latency. Unless told otherwise, a bucket is an eighth of the model, with at least 4 MiB for each
/// rank and at most 25 MiB; for the least memory, a sixteenth, with at least 1 MiB. Where a rank
/// has all gradients anyway, small buckets would save nothing.

/// Where a parameter lies in its bucket, in elements.
struct Slot {
  size_t parameter;
  int64_t offset;
  int64_t numel;
};

/// Parameters that are communicated together, laid out one after another. Rank r owns the elements
/// from bounds[r] to bounds[r + 1].
struct Bucket {
  at::Device device;
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
/// allocated tensors. The same on all ranks for the same parameters and order. Local.
class ShardPlan {
 public:
  /// `order` lists all parameters as their gradients are expected; without it, the last comes
  /// first.
  ShardPlan(const std::vector<Parameter>& parameters, int ranks, const PlanOptions& options = {},
            std::vector<size_t> order = {});

  int ranks() const { return ranks_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The bucket and the slot in it that hold a parameter.
  size_t bucket_of(size_t parameter) const { return places_[parameter].bucket; }
  const Slot& slot_of(size_t parameter) const {
    return buckets_[bucket_of(parameter)].slots[places_[parameter].slot];
  }
  /// The order in which the buckets were filled.
  const std::vector<size_t>& order() const { return order_; }
  int64_t range_begin(size_t bucket, int rank) const { return buckets_[bucket].bounds[rank]; }
  int64_t range_length(size_t bucket, int rank) const {
    return buckets_[bucket].bounds[rank + 1] - buckets_[bucket].bounds[rank];
  }
  /// What a rank owns, in the order of its ranges.
  std::vector<Piece> pieces(int rank) const;

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

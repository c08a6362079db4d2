#pragma once
// shard/ divides parameters among ranks. A ShardPlan says who owns what; FlatParameters holds the
// values in the plan's order; GradReducer brings every rank the gradients of what it owns.

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
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

struct PlanOptions {
  // Performance
  /// How much a bucket holds before the next one is begun. 0: every parameter has its own.
  TORCH_ARG(int64_t, bucket_bytes) = 25 << 20;
  /// The first bucket is smaller, so that communication starts early in backward.
  TORCH_ARG(int64_t, first_bucket_bytes) = 1 << 20;
};

/// Where a parameter lies in its bucket, in elements.
struct Slot {
  size_t parameter;
  int64_t offset;
  int64_t numel;
};

/// Parameters that are communicated together, laid out one after another. Of `length` elements,
/// rank r of N owns those from r * length / N to (r + 1) * length / N.
struct Bucket {
  at::ScalarType dtype;
  at::Device device;
  std::vector<Slot> slots;
  int64_t length;
};

/// A part of a parameter that one rank owns: the elements from begin to end (in the order of
/// memory), which lie from `offset` on in the rank's range of the bucket.
struct Piece {
  size_t bucket;
  size_t parameter;
  int64_t begin;
  int64_t end;
  int64_t offset;
};

/// Divides parameters evenly among ranks: buckets of one dtype, device, group and kind (trainable
/// or frozen), in reverse order (that of gradients in backward); every rank owns an equal,
/// contiguous range of every bucket, so a parameter may be split between ranks. Parameters and
/// ranges start at multiples of 64 bytes: kernels keep their speed, and their results stay bit for
/// bit those of separately allocated tensors. The same on all ranks for the same parameters. Local.
class ShardPlan {
 public:
  ShardPlan(const std::vector<Parameter>& parameters, int ranks, const PlanOptions& options = {});

  int ranks() const { return ranks_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The bucket and the slot in it that hold a parameter.
  size_t bucket_of(size_t parameter) const { return places_[parameter].bucket; }
  size_t slot_of(size_t parameter) const { return places_[parameter].slot; }
  int64_t range_length(size_t bucket) const { return buckets_[bucket].length / ranks_; }
  /// What a rank owns, in the order of its ranges.
  std::vector<Piece> pieces(int rank) const;

 private:
  struct Place {
    size_t bucket;
    size_t slot;
  };

  int ranks_;
  std::vector<Bucket> buckets_;
  std::vector<Place> places_;
};

}  // namespace fairshard::shard

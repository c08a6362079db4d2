#pragma once
// Parameters as flat buffers for the outer loop: who has which range, and moving values in and out.

#include "wire.h"
#include <fairshard/outer/optimizer.h>
#include <fairshard/shard/layout.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace fairshard::outer {

/// Parameters that are synchronised together, one after another in a flat buffer of float32 (or
/// float64, if they are so), and what this rank keeps for them.
struct OuterBucket {
  at::Device device;
  at::ScalarType dtype;
  int fragment;
  /// Their parameters are numbers among all parameters.
  std::vector<shard::Slot> slots;
  /// Which range each rank of a node has, and which is this rank's.
  std::vector<int64_t> bounds;
  int64_t begin;
  int64_t end;

  // Outer buffers: this rank's range, or all.
  at::Tensor outer;
  at::Tensor momentum;
  // This rank's range.
  at::Tensor error;
  std::unique_ptr<PendingAverage> pending;
  /// All of it was frozen from the start, so that there is nothing to synchronise.
  bool is_frozen;

  int64_t length() const { return bounds.back(); }
};

using Parameters = std::vector<shard::Parameter>;

/// The parameters that can be trained at all, each once.
Parameters select_parameters(const Parameters& parameters);

/// Gives each parameter a fragment as its `group`: contiguous ones of about the same size.
void assign_fragments(Parameters& parameters, int fragments);

/// Buckets for the parameters from `first` on, for rank `rank` of a node's `ranks`.
std::vector<OuterBucket> lay_out(const Parameters& parameters, size_t first, int rank, int ranks,
                                 const OuterOptions& options);

/// Elements `begin` to `end` of the flat buffer. `masters`, if not empty, are the values instead of
/// the parameters' own.
at::Tensor pack(const OuterBucket& bucket, const Parameters& parameters,
                const std::vector<at::Tensor>& masters, int64_t begin, int64_t end);

/// Brings a whole flat buffer's values to the parameters, and to the masters if there are any;
/// what is there keeps `local_weight`.
void unpack(const OuterBucket& bucket, const Parameters& parameters,
            const std::vector<at::Tensor>& masters, const at::Tensor& flat, double local_weight);

/// The runs of one learning rate in elements `begin` to `end`, counted from `begin`.
std::vector<Run> runs_of(const OuterBucket& bucket, const std::vector<double>& learning_rates,
                         int64_t begin, int64_t end);

}  // namespace fairshard::outer

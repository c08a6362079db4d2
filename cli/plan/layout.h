#pragma once
// How the library would lay out a model's parameters; asked of the library itself, with tensors
// that have no memory.

#include "model_shape.h"
#include "predict.h"
#include <fairshard/page/slicing.h>
#include <fairshard/shard/layout.h>

#include <cstdint>
#include <vector>

namespace fairshard::cli::planning {

/// The trainer's buckets, of float32; for gradients that come in this order, if it is known.
shard::ShardLayout bucket_layout(const ModelShape& model, Sharding sharding, int ranks,
                                 const std::vector<size_t>& order = {});

struct PageLayout {
  std::vector<int64_t> slice_of_block;
  std::vector<int64_t> slice_of_parameter;  ///< -1: on the device all the time
  int64_t device_bytes = 0;
  int64_t host_bytes = 0;  ///< weights and gradients
};

PageLayout page_layout(const ModelShape& model, int64_t slices);

}  // namespace fairshard::cli::planning

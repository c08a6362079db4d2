#pragma once
// Which parameters make up which slice.

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace fairshard::page {

/// How blocks are put into slices.
struct Slicing {
  /// Of each block, in order: its slice.
  std::vector<int64_t> slice_of_block;
  /// Each parameter once.
  std::vector<std::vector<at::Tensor>> slices;
  /// Parameters of no block, and those of blocks in different slices: tied weights.
  std::vector<at::Tensor> common;
};

/// Puts blocks that run one after another into at most `num_slices` slices, such that the largest
/// is as small as can be (that is what a slot of the device must hold); or, without a number, each
/// into a slice of its own. `rest` are parameters of no block.
Slicing slice_blocks(const std::vector<std::vector<at::Tensor>>& blocks,
                     const std::vector<at::Tensor>& rest, std::optional<int64_t> num_slices);

}  // namespace fairshard::page

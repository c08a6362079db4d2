#pragma once
// Parts of a flat tensor, one for each rank.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace fairshard::comm {

/// Numbers of elements, one for each rank.
using Sizes = std::vector<int64_t>;

/// The last parts are shorter or empty if the tensor does not divide.
std::vector<at::Tensor> split_evenly(const at::Tensor& flat, int ranks);
std::vector<at::Tensor> split_by(const at::Tensor& flat, const Sizes& sizes);

/// How many elements each rank has of a tensor that is divided by rows (none given: evenly).
Sizes sizes_of_rows(const at::Tensor& tensor, const std::vector<int64_t>& rows, int ranks);
/// An undefined part counts as empty.
Sizes sizes_of(const std::vector<at::Tensor>& parts);
/// Of parts that lie one after another within such bounds.
Sizes sizes_within(const std::vector<int64_t>& bounds);

int64_t total(const Sizes& sizes);
bool are_equal(const Sizes& sizes);

}  // namespace fairshard::comm

#pragma once
// Where values go from one slice to the next: an identity whose backward tells the pager.

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace fairshard::page {

/// The values, in a graph whose backward calls `cross`. If nothing needs a gradient, they are as
/// they were.
std::vector<at::Tensor> mark_boundary(const std::vector<at::Tensor>& values,
                                      std::function<void()> cross);

}  // namespace fairshard::page

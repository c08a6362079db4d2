#pragma once
// Where values go from one slice to the next: an identity that tells the pager, in both directions.

#include <fairshard/page/pager.h>

#include <vector>

namespace fairshard::page {

/// The values, in a graph whose backward crosses from `to` to `from`.
std::vector<at::Tensor> mark_boundary(const std::shared_ptr<Pager>& pager, int64_t from, int64_t to,
                                      const std::vector<at::Tensor>& values);

}  // namespace fairshard::page

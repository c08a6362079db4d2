#pragma once
// Collectives on single tensors, which torch 2.15 renamed. Templates, so that the branch for the
// other version is not compiled.

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <vector>

namespace fairshard::comm {

template <typename Group>
auto all_gather_single(Group& group, at::Tensor& output, at::Tensor& input) {
  if constexpr (requires { group.all_gather_single(output, input); }) {
    return group.all_gather_single(output, input);
  } else {
    return group._allgather_base(output, input);
  }
}

template <typename Group>
auto reduce_scatter_single(Group& group, at::Tensor& output, at::Tensor& input,
                           const c10d::ReduceScatterOptions& options) {
  if constexpr (requires { group.reduce_scatter_single(output, input, options); }) {
    return group.reduce_scatter_single(output, input, options);
  } else {
    return group._reduce_scatter_base(output, input, options);
  }
}

template <typename Group>
auto all_to_all_single(Group& group, at::Tensor& output, at::Tensor& input,
                       std::vector<int64_t>& received, std::vector<int64_t>& sent) {
  if constexpr (requires { group.all_to_all_single(output, input, received, sent); }) {
    return group.all_to_all_single(output, input, received, sent);
  } else {
    return group.alltoall_base(output, input, received, sent);
  }
}

}  // namespace fairshard::comm

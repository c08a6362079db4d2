#include "gpt/replicated.h"

#include <fairshard/comm/collectives.h>

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace gpt {
namespace {

namespace comm = fairshard::comm;

/// Large enough for a good rate, small enough that sending one chunk overlaps with summing another.
constexpr int64_t kChunkBytes = int64_t{4} << 20;

void wait_all(std::vector<comm::Work>& works) {
  for (auto& work : works) {
    work.wait();
  }
}

}  // namespace

void broadcast_parameters(const comm::Group& group, const std::vector<at::Tensor>& parameters) {
  std::vector<comm::Work> works;
  for (const auto& parameter : parameters) {
    works.push_back(comm::broadcast(group, parameter.detach(), 0, "initial parameters"));
  }
  wait_all(works);
}

ReplicatedGradients::ReplicatedGradients(comm::Group group,
                                         const std::vector<at::Tensor>& parameters)
    : group_(std::move(group)) {
  TORCH_CHECK_VALUE(!parameters.empty(), "ReplicatedGradients: there are no parameters");
  int64_t total = 0;
  for (const auto& parameter : parameters) {
    total += parameter.numel();
  }
  flat_ = at::zeros({total}, parameters.front().options().requires_grad(false));
  int64_t offset = 0;
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() = flat_.narrow(0, offset, parameter.numel()).view_as(parameter);
    offset += parameter.numel();
  }
}

void ReplicatedGradients::average_() {
  const int64_t chunk = kChunkBytes / flat_.element_size();
  std::vector<comm::Work> works;
  for (int64_t offset = 0; offset < flat_.numel(); offset += chunk) {
    const auto length = std::min(chunk, flat_.numel() - offset);
    works.push_back(comm::all_reduce(group_, flat_.narrow(0, offset, length), comm::ReduceOp::kAvg,
                                     "gradients"));
  }
  wait_all(works);
}

}  // namespace gpt

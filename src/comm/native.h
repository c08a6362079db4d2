#pragma once
// Collectives that the c10d backend (NCCL, MPI, ...) carries out itself.

#include "call.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <memory>

namespace fairshard::comm {

std::shared_ptr<Pending> start_native(c10d::ProcessGroup& process_group, const Call& call,
                                      const at::Tensor& output, const at::Tensor& input,
                                      std::chrono::milliseconds timeout);

}  // namespace fairshard::comm

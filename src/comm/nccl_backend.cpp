#include "c10d_backends.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace fairshard::comm {

bool has_nccl() { return true; }

BackendPtr make_nccl(const StorePtr& store, int rank, int size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

}  // namespace fairshard::comm

#include "support/ranks.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace fairshard::test {
namespace {

bool is_over_nccl() {
  const char* const backend = std::getenv("FAIRSHARD_TEST_BACKEND");
  return backend && std::string(backend) == "nccl";
}

}  // namespace

at::Device device() {
  return is_over_nccl() ? c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getDevice()
                        : at::Device(c10::DeviceType::CPU);
}

void run_ranks(int ranks, const comm::RankFunction& fn) {
  if (!is_over_nccl()) {
    comm::launch_threads(ranks, fn);
    return;
  }
  const auto checked = [&](const comm::Group& group) {
    fn(group);
    TORCH_CHECK(!testing::Test::HasFailure(), "an expectation was not met");
  };
  comm::launch(ranks, checked, comm::LaunchOptions().timeout_s(120).backend("nccl"));
}

}  // namespace fairshard::test

#pragma once
// Makes c10d process groups. The only place that knows which backends there are.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace fairshard::comm {

struct BackendChoice {
  /// The address or, with a leading '@', the interface that Gloo binds to; empty: by hostname.
  std::string gloo_bind;
  enum class Cuda { kNone, kNccl, kGloo } cuda = Cuda::kNone;
};

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const BackendChoice& choice,
    std::chrono::milliseconds timeout);

/// The backends that a group of ours has, for making another like it.
BackendChoice backends_like(c10d::ProcessGroup& process_group);

// One file each; the NCCL one is a stub where torch was built without CUDA.
c10::intrusive_ptr<c10d::Backend> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, const std::string& bind,
                                            std::chrono::milliseconds timeout);
c10::intrusive_ptr<c10d::Backend> make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, std::chrono::milliseconds timeout);
bool has_nccl();

/// CUDA devices that this process can use; 0 without a driver.
int cuda_device_count();

}  // namespace fairshard::comm

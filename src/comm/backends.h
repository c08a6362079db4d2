#pragma once
// Makes c10d process groups. The only place that knows which backends there are.

#include "c10d_backends.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace fairshard::comm {

using ProcessGroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

struct BackendChoice {
  /// Where Gloo listens; see make_gloo().
  std::string bind;
  /// Of CUDA tensors, which may go through the host's memory.
  enum class Cuda { kNone, kNccl, kThroughHost } cuda = Cuda::kNone;
  /// Whether CPU tensors have a backend, too.
  bool cpu = true;
};

ProcessGroupPtr make_process_group(const StorePtr& store, int rank, int size,
                                   const BackendChoice& choice, std::chrono::milliseconds timeout);

/// What GLOO_SOCKET_IFNAME says; of several interfaces the first. Empty if it is not set.
std::string bind_of_environment();

/// The group itself or, if it has a plain Gloo backend, a sibling on the same store and connections
/// whose collectives go through a DirectBackend over it. The given one stays as it is.
ProcessGroupPtr decorated(const ProcessGroupPtr& process_group);

/// A group of some of the ranks with the same kinds of backends; null on other ranks. Connects over
/// the store, if that is what such backends do; others serve a group of all ranks as they are.
bool splits_connect(c10d::ProcessGroup& process_group);
ProcessGroupPtr split(c10d::ProcessGroup& process_group, const StorePtr& store,
                      const std::vector<int>& ranks);

std::chrono::milliseconds timeout_of(c10d::Backend& backend);

/// CUDA devices that this process can use; 0 without a driver.
int cuda_device_count();

}  // namespace fairshard::comm

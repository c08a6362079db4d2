#pragma once
// From environment variables to a Group: what torch.distributed.init_process_group is in Python.

#include <fairshard/comm/environment.h>
#include <fairshard/comm/group.h>

namespace fairshard::comm {

/// Meets the other ranks and returns the group of all of them. CPU tensors go over Gloo; CUDA
/// tensors over NCCL, or over Gloo (with a warning) where several ranks share a GPU. When all ranks
/// are on one machine only the loopback interface is used; otherwise GLOO_SOCKET_IFNAME chooses it.
///
/// Collective: every rank calls it. Blocks until all have come, at most for the timeout, and then
/// throws c10::DistNetworkError that says which ranks are missing and where they were awaited.
Group init_process_group(const GroupOptions& options = {});

/// The same for an environment that is already known.
Group init_process_group(const Environment& environment, const GroupOptions& options = {});

}  // namespace fairshard::comm

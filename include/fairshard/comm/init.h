#pragma once
// From environment variables to a Group: what torch.distributed.init_process_group is in Python.

#include <fairshard/comm/environment.h>
#include <fairshard/comm/group.h>

#include <torch/arg.h>

#include <string>

namespace fairshard::comm {

/// What a process group is made with.
struct GroupOptions {
  // Behaviour
  /// How long any wait may take before it ends in an error, in seconds.
  TORCH_ARG(double, timeout_s) = 300;
  /// What moves tensors: "fairshard" (direct exchange over Gloo's connections; CUDA tensors go
  /// through host memory), "nccl" (CUDA tensors only), "cpu:fairshard,cuda:nccl", or, if empty, the
  /// last where every rank has a GPU of its own, and else the first.
  TORCH_ARG(std::string, backend);
};

/// Meets the other ranks and returns the group of all of them. Where there are GPUs, the current
/// one becomes that of the rank's number on its machine. Ranks share a GPU over NCCL only if
/// NCCL_MULTI_RANK_GPU_ENABLE is set to 1, and else go through host memory, with a warning. When
/// all ranks are on one machine only the loopback interface is used; otherwise GLOO_SOCKET_IFNAME
/// chooses it.
///
/// Collective: every rank calls it. Blocks until all have come, at most for the timeout, and then
/// throws c10::DistNetworkError that says which ranks are missing and where they were awaited.
Group init_process_group(const GroupOptions& options = {});

/// The same for an environment that is already known.
Group init_process_group(const Environment& environment, const GroupOptions& options = {});

/// The first half of it, for those who make a process group by other means: meets the other ranks,
/// and returns the store that they share. Collective; blocks as above.
c10::intrusive_ptr<c10d::Store> meet(const Environment& environment, double timeout_s = 300);

}  // namespace fairshard::comm

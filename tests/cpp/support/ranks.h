#pragma once
// Ranks of a test, on what the test is run on.

#include <fairshard/comm.h>

#include <c10/core/Device.h>

namespace fairshard::test {

/// Where a rank has its tensors: its GPU if FAIRSHARD_TEST_BACKEND is nccl, else the CPU.
at::Device device();

/// Runs `fn` on every rank: threads of this process that exchange CPU tensors, or, if
/// FAIRSHARD_TEST_BACKEND is nccl, processes with GPUs, over NCCL alone (autograd has one thread
/// for a GPU, and ranks as threads would wait for each other on it). What `fn` writes to its
/// captures is lost in the latter; its failed expectations are not.
void run_ranks(int ranks, const comm::RankFunction& fn);

}  // namespace fairshard::test

#pragma once
// Collectives over Gloo's point-to-point messages.
//
// Why not Gloo's own: its reduce-scatter is an all-reduce (twice the bytes), its all-gather is a
// ring (N - 1 rounds of latency, and measured at a third of the speed), and a difference in size
// between ranks ends the process or goes unnoticed. Here every rank sends to all others at
// once, so both directions of a link are busy, and a header travels ahead of the data.

#include "call.h"
#include "progress.h"
#include "staging.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>

namespace fairshard::comm {

/// Starts the collective that `call` describes on CPU tensors; see collectives.h for their sizes.
/// `staging` is memory to receive into; `sent_bytes` is raised by what this rank sends.
std::shared_ptr<Operation> start_exchange(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                                          const Call& call, const at::Tensor& output,
                                          const at::Tensor& input, std::shared_ptr<Staging> staging,
                                          uint64_t& sent_bytes);

}  // namespace fairshard::comm

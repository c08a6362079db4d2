#pragma once
// What the Groups on one process group share.

#include "direct_backend.h"
#include <fairshard/comm/group.h>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <vector>

namespace fairshard::comm {

struct Group::State {
  explicit State(c10::intrusive_ptr<c10d::ProcessGroup> given);

  bool has(c10::DeviceType device) const;
  DirectBackend* direct(c10::DeviceType device) const;

  /// Kept, so that no other process group comes to stand at its address.
  const c10::intrusive_ptr<c10d::ProcessGroup> given;
  /// The given one, or one of the same ranks and connections with Gloo behind DirectBackend.
  const c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  const int rank;
  const int size;

  std::atomic<uint64_t> collectives = 0;
  /// By backends that do not count what they send.
  std::atomic<uint64_t> uncounted_bytes = 0;
  std::atomic<int64_t> waited_ns = 0;
};

}  // namespace fairshard::comm

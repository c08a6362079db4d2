#pragma once
// What the Groups on one process group share.

#include "call.h"
#include "progress.h"
#include "staging.h"
#include <fairshard/comm/group.h>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <mutex>

namespace fairshard::comm {

struct Group::State : std::enable_shared_from_this<Group::State> {
  explicit State(c10::intrusive_ptr<c10d::ProcessGroup> process_group);

  /// Starts a collective: numbers it, counts it, and gives it to the backend of its device.
  Work start(Call call, const at::Tensor& output, const at::Tensor& input,
             std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  const int rank;
  const int size;

  std::mutex mutex;
  uint64_t sequence = 0;
  Traffic traffic;
  /// Shared with collectives under way.
  const std::shared_ptr<Staging> staging = std::make_shared<Staging>();
  /// Last, so that it ends first: its messages need the process group.
  Progress progress;
};

}  // namespace fairshard::comm

#pragma once
// What the Groups on one process group share.

#include "direct_backend.h"
#include "last_calls.h"
#include "wait_watch.h"
#include <fairshard/comm/group.h>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fairshard::comm {

struct Group::State {
  explicit State(c10::intrusive_ptr<c10d::ProcessGroup> given);
  /// Of a process that is not in the group.
  State(int size, int local_rank);
  ~State();

  /// Throws if this process is not in the group.
  void require_member(const char* user) const;

  /// What moves the tensors of a kind of device.
  struct Route {
    c10::DeviceType device;
    /// Null if it is another backend.
    DirectBackend* direct;
    /// Whether the backend can say that a collective has ended before somebody waits for it.
    bool tells_completion;
  };

  /// Null if the group has no backend for such tensors.
  const Route* route(c10::DeviceType device) const;

  /// Kept, so that no other process group comes to stand at its address.
  const c10::intrusive_ptr<c10d::ProcessGroup> given;
  /// The given one, or one of the same ranks and connections with Gloo behind DirectBackend.
  const c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  /// Looked up once, and not in every collective.
  const std::vector<Route> routes;
  const int rank;
  const int size;
  /// If it is not what the process's environment says.
  std::optional<int> local_rank;

  std::atomic<uint64_t> collectives = 0;
  /// By backends that do not count what they send.
  std::atomic<uint64_t> uncounted_bytes = 0;
  std::atomic<int64_t> waited_ns = 0;

  /// Of backends that are not our own.
  LastCalls last_calls;
  /// Null if nobody can wait for another. The last member: it looks at the others.
  const std::unique_ptr<WaitWatch> watch;

 private:
  std::vector<Standing> standings();
  std::unique_ptr<WaitWatch> make_watch();
};

/// A name that this store has not seen, the same on all ranks that ask equally often. The store
/// counts, for each rank: it outlives a Group.
std::string unused_name(c10d::Store& store, int rank, const std::string& purpose);

/// Returns when all that this rank has started in the group has ended, well or not: others may need
/// it after this rank has gone. Backends that are not our own see to that themselves.
void flush(const Group& group);

}  // namespace fairshard::comm

#pragma once
// comm/ is how ranks find each other and exchange tensors. c10d is the interface: a Group is a c10d
// process group with the little that c10d lacks, and collectives.h are c10d's collectives.

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace fairshard::comm {

/// Payload that this rank has sent since the group was made, in bytes, and in how many collectives.
/// For backends that do not count (NCCL) it is what the best algorithm must send.
struct Traffic {
  uint64_t sent_bytes = 0;   ///< without the headers of messages
  uint64_t collectives = 0;  ///< started
};

/// Ranks that communicate: a shared handle on a c10d process group of any backend. Gloo's
/// collectives are replaced by direct exchange over its own connections (see docs/comm.md); the
/// process group itself stays as it is. All Groups on one process group in a process share one
/// state, so that their collectives are numbered together. Timeouts are the process group's own.
///
/// Collectives of one group must be started in the same order on all of its ranks, and from one
/// thread at a time. When one fails, the group is broken: every later call throws the first error.
class Group {
 public:
  /// Takes any c10d process group, also one that Python made. Local: nothing is communicated.
  explicit Group(c10::intrusive_ptr<c10d::ProcessGroup> process_group);

  /// This process's, from 0 to size() - 1; -1 if it is not in the group.
  int rank() const;
  /// How many ranks there are.
  int size() const;
  /// This process's number among those on its machine, as whatever has started it says: the number
  /// of its GPU, say. The same in all groups; 0 if nobody has said it.
  int local_rank() const;
  /// How long any wait may take.
  std::chrono::milliseconds timeout() const;
  /// What this rank has sent since the group was made.
  Traffic traffic() const;

  /// The name of the c10d backend that moves tensors of this device type, for instance "gloo".
  std::string backend_name(c10::DeviceType device) const;

  /// Where small tensors that the host reads are best: the CPU if the group has a backend for it,
  /// else the current device of a kind that it has. Collectives take CPU tensors in any case, but
  /// then move them there and back, and the host waits for it.
  at::Device control_device() const;

  /// What the collectives go through, for what c10d does that is not here.
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const;

  /// A group of some of these ranks, given by their ranks in this group in ascending order.
  /// Collective over this group: every rank calls it with the same list, and ranks that are not
  /// in the list get a group that only knows its size and that their rank is -1, and refuses all
  /// else.
  Group subgroup(const std::vector<int>& ranks) const;
  /// A group of the same ranks, whose collectives do not wait for those of this one. Collective.
  Group duplicate() const;

  /// A key-value store of these ranks, apart from all others that were made so: for messages beside
  /// the collectives, from any thread. Ranks make them in the same order. Local.
  c10::intrusive_ptr<c10d::Store> new_store(const std::string& purpose) const;

  struct State;
  /// For our own sources.
  State& state() const { return *state_; }
  /// The same, to be kept.
  const std::shared_ptr<State>& shared_state() const { return state_; }

 private:
  Group() = default;
  std::shared_ptr<State> state_;
};

}  // namespace fairshard::comm

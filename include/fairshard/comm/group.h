#pragma once
// comm/ is how ranks find each other and exchange tensors. A Group is the set of ranks that do so;
// everything above comm/ sees only Groups and the collectives of collectives.h.

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/arg.h>

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

/// What a Group is made with.
struct GroupOptions {
  // Behaviour
  /// How long any wait may take before it ends in an error, in seconds.
  TORCH_ARG(double, timeout_s) = 300;
};

/// Payload that this rank has sent since the group was made, in bytes, and in how many collectives.
/// For backends that move the data themselves (NCCL) it is what the best algorithm must send.
struct Traffic {
  uint64_t sent_bytes = 0;   ///< without the headers of messages
  uint64_t collectives = 0;  ///< started
};

/// Ranks that communicate: a shared handle on a c10d process group. All Groups on one process group
/// in a process share one state, so that their collectives are numbered together.
///
/// Collectives of one group must be started in the same order on all of its ranks, and from one
/// thread at a time. When one fails, the group is broken: every later call throws the first error.
class Group {
 public:
  /// Takes any c10d process group, also one that Python made. Local: nothing is communicated.
  explicit Group(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                 const GroupOptions& options = {});

  /// This process's, from 0 to size() - 1; -1 if it is not in the group.
  int rank() const;
  /// How many ranks there are.
  int size() const;
  /// How long any wait may take.
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// What this rank has sent since the group was made.
  Traffic traffic() const;

  /// The name of the c10d backend that moves tensors of this device type, for instance "gloo".
  std::string backend_name(c10::DeviceType device) const;

  /// For what c10d does that is not here.
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const;

  /// A group of some of these ranks, given by their ranks in this group in ascending order.
  /// Collective over this group: every rank calls it with the same list, and ranks that are not
  /// in the list get a group that only knows its size (its rank is -1).
  Group subgroup(const std::vector<int>& ranks) const;
  /// A group of the same ranks, whose collectives do not wait for those of this one. Collective.
  Group another() const;

  /// A key-value store of these ranks, apart from all others that were made so: for messages beside
  /// the collectives, from any thread. Ranks make them in the same order. Local.
  c10::intrusive_ptr<c10d::Store> new_store(const std::string& purpose) const;

  struct State;
  /// For our own sources.
  State& state() const { return *state_; }

 private:
  std::string unused_name(const std::string& purpose) const;

  std::chrono::milliseconds timeout_;
  std::shared_ptr<State> state_;
};

}  // namespace fairshard::comm

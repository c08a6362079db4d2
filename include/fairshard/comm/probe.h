#pragma once
// What the links between ranks can do, each by itself and all together, measured with plain sockets
// before there is a process group: one that cannot connect two of its ranks fails as a whole, and
// does not say which.

#include <fairshard/comm/link.h>

#include <c10/util/intrusive_ptr.h>
#include <torch/arg.h>

#include <cstdint>
#include <string>
#include <vector>

namespace c10d {
class Store;
}  // namespace c10d

namespace fairshard::comm {

/// How much is measured, and how long anything may take.
struct ProbeOptions {
  // Behaviour
  /// How long a rank waits for another one's answer, in seconds.
  TORCH_ARG(double, answer_s) = 5;

  // Performance
  /// How long all transfers of one rank to another may take, one after another, in seconds; one of
  /// them takes at most half a second.
  TORCH_ARG(double, transfers_s) = 10;
  /// The most that one of them sends; when all send at once, a rank sends at most 16 times that.
  TORCH_ARG(int64_t, transfer_bytes) = int64_t{32} << 20;
};

/// What one rank has found.
struct Probe {
  /// To each other rank, in order.
  std::vector<Link> links;
  /// Addresses whose calls this rank has got and answered without hearing more: its answers do not
  /// reach them.
  std::vector<std::string> unheard_by;
};

/// Measures the links of all ranks: first all call all, then one rank at a time sends to each of
/// the others, then all send at once. `store` is what ranks share (comm::meet(),
/// Group::new_store()); `address` is where this rank listens (listening_place()), at a port that
/// the system chooses, and may be empty: then it cannot be called.
///
/// Collective: every rank calls it, at about the same time. Blocks, at most for transfers_s and for
/// a few times answer_s per rank; a rank that has ended, or that is not reached, is a fault of its
/// links and no error. Throws c10::Error if the store is lost, or if nobody can listen at
/// `address`.
Probe probe_links(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                  const std::string& address, const ProbeOptions& options = {});

}  // namespace fairshard::comm

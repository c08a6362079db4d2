#pragma once
// A c10d backend for CPU tensors, for whoever makes process groups: also torch's own DDP and FSDP.

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace fairshard::comm {

/// One rank's end of a backend whose collectives are direct exchanges over Gloo's connections:
/// every rank sends to all others at once, each byte once, and sums in rank order.
/// GLOO_SOCKET_IFNAME chooses the interface. Collective: blocks until all ranks have come.
c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size, double timeout_s);

}  // namespace fairshard::comm

#pragma once
// How ranks reach the store that one of them serves at a port.

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <string>

namespace fairshard::comm {

/// Where ranks of one machine look for the store.
constexpr const char* kLoopback = "127.0.0.1";

/// A socket that listens there at the port, and nowhere else: c10d's own listens on all interfaces.
/// Throws c10::DistNetworkError if the port is taken.
int listen_on_loopback(int port);

/// c10d's TCPStore, but within options.timeout: its constructor takes that much for each of several
/// attempts, and waits without end for a host that accepts connections and says nothing. Throws
/// c10::DistNetworkError.
c10::intrusive_ptr<c10d::Store> connect_in_time(const std::string& host,
                                                const c10d::TCPStoreOptions& options);

}  // namespace fairshard::comm

#pragma once
// The network interfaces of this machine, and on which of them a process group listens.

#include <string>
#include <vector>

namespace fairshard::comm {

/// An address of an interface; one that has several is listed as often.
struct InterfaceAddress {
  std::string interface;     ///< for instance "eth0"
  std::string address;       ///< for instance "10.0.0.2" or "fd00::2"
  bool is_loopback = false;  ///< reaches this machine only
  bool is_up = false;        ///< whether it carries anything
};

/// All of them, in the system's order. Local.
std::vector<InterfaceAddress> interface_addresses();

/// Where the peers of a rank reach it.
struct ListeningPlace {
  std::string address;    ///< empty if there is none
  std::string interface;  ///< that has the address
  /// "one machine" (loopback is enough), "GLOO_SOCKET_IFNAME", "host name", or "nothing": the host
  /// name has no address of this machine, and Gloo takes the loopback interface.
  std::string chosen_by;
  std::string fault;  ///< why there is no address
};

/// Where a process group of ours, and Gloo's own, listens in this process: what they do, without
/// doing it. Asks the resolver for the host's name where that decides, and so may block. Local.
ListeningPlace listening_place(bool is_one_machine);

/// The addresses of a host's name, or why there are none.
struct ResolvedName {
  std::vector<std::string> addresses;  ///< numeric; empty if there are none
  std::string fault;                   ///< empty if there are some
};

/// Asks the resolver, which may block for as long as it is set to. Local.
ResolvedName resolve(const std::string& host);

/// The address that this machine would send from to another one; empty if no way leads there.
/// Nothing is sent. Local.
std::string source_address(const std::string& numeric_address);

}  // namespace fairshard::comm

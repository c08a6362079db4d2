#include "backends.h"
#include "socket_address.h"
#include <fairshard/comm/interfaces.h>

#include <c10/util/Exception.h>

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>

namespace fairshard::comm {
namespace {

/// What the resolver gives.
std::vector<SocketAddress> socket_addresses(const std::string& host, std::string& fault) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &first); error != 0) {
    fault = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(first, freeaddrinfo);
  std::vector<SocketAddress> result;
  for (const addrinfo* each = first; each; each = each->ai_next) {
    result.emplace_back(each->ai_addr, each->ai_addrlen);
  }
  return result;
}

std::string own_host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  TORCH_CHECK(gethostname(name.data(), name.size() - 1) == 0,
              "this machine has no name: ", std::strerror(errno));
  return name.data();
}

bool is_own_address(const SocketAddress& address) {
  const int probe = socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool is_own = probe >= 0 && bind(probe, address.get(), address.length()) == 0;
  close(probe);
  return is_own;
}

/// The first that can be listened on, as Gloo takes it.
std::string own_address_of(const std::string& host) {
  std::string ignored;
  const auto addresses = socket_addresses(host, ignored);
  const auto found = std::find_if(addresses.begin(), addresses.end(), is_own_address);
  return found == addresses.end() ? "" : found->text();
}

std::string interface_of(const std::string& address) {
  for (const auto& each : interface_addresses()) {
    if (each.address == address) {
      return each.interface;
    }
  }
  // All of 127.0.0.0/8 belongs to it, and one of these addresses is listed.
  return address.rfind("127.", 0) == 0 ? "lo" : "";
}

ListeningPlace place_of_interface(const std::string& wanted) {
  ListeningPlace place{"", wanted, "GLOO_SOCKET_IFNAME", ""};
  std::string there;
  bool is_down = false;
  for (const auto& each : interface_addresses()) {
    if (each.interface == wanted && each.is_up && place.address.empty()) {
      place.address = each.address;
    }
    is_down = is_down || (each.interface == wanted && !each.is_up);
    there += (there.empty() ? "" : ", ") + each.interface + " (" + each.address + ")";
  }
  if (place.address.empty()) {
    place.fault = c10::str("GLOO_SOCKET_IFNAME is ", wanted,
                           is_down ? ", which is down" : ", which has no address here",
                           "; there are ", there);
  }
  return place;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* first = nullptr;
  TORCH_CHECK(getifaddrs(&first) == 0, "no list of network interfaces: ", std::strerror(errno));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, freeifaddrs);
  std::vector<InterfaceAddress> result;
  for (const ifaddrs* each = first; each; each = each->ifa_next) {
    const int family = each->ifa_addr ? each->ifa_addr->sa_family : AF_UNSPEC;
    if (family == AF_INET || family == AF_INET6) {
      const size_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      result.push_back({each->ifa_name, SocketAddress(each->ifa_addr, length).text(),
                        (each->ifa_flags & IFF_LOOPBACK) != 0, (each->ifa_flags & IFF_UP) != 0});
    }
  }
  return result;
}

ListeningPlace listening_place(bool is_one_machine) {
  constexpr const char* kAddressOfLoopback = "127.0.0.1";
  const auto at = [](const std::string& address, const char* chosen_by) {
    return ListeningPlace{address, interface_of(address), chosen_by, ""};
  };
  if (is_one_machine) {
    return at(kAddressOfLoopback, "one machine");
  }
  if (const std::string bind = bind_of_environment(); !bind.empty()) {
    return place_of_interface(bind.substr(1));
  }
  const std::string address = own_address_of(own_host_name());
  return address.empty() ? at(kAddressOfLoopback, "nothing") : at(address, "host name");
}

ResolvedName resolve(const std::string& host) {
  ResolvedName result;
  for (const auto& address : socket_addresses(host, result.fault)) {
    result.addresses.push_back(address.text());
  }
  return result;
}

std::string source_address(const std::string& numeric_address) {
  const auto there = SocketAddress::parse(numeric_address, /*port=*/9);
  if (!there) {
    return "";
  }
  const int probe = socket(there->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  const bool is_known = probe >= 0 && connect(probe, there->get(), there->length()) == 0 &&
                        getsockname(probe, reinterpret_cast<sockaddr*>(&own), &length) == 0;
  if (probe >= 0) {
    close(probe);
  }
  return is_known ? SocketAddress(reinterpret_cast<sockaddr*>(&own), length).text() : "";
}

}  // namespace fairshard::comm

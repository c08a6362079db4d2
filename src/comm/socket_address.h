#pragma once
// An address of a socket, of either version of the protocol.

#include <netdb.h>
#include <sys/socket.h>

#include <cstring>
#include <optional>
#include <string>

namespace fairshard::comm {

class SocketAddress {
 public:
  SocketAddress(const sockaddr* address, size_t length) : length_(static_cast<socklen_t>(length)) {
    std::memcpy(&storage_, address, length);
  }

  /// Of figures, not of a name: asks nobody. Nothing if they are none.
  static std::optional<SocketAddress> parse(const std::string& address, int port) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
      return std::nullopt;
    }
    const SocketAddress result(found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return result;
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  int family() const { return storage_.ss_family; }

  /// In figures, without the port.
  std::string text() const {
    char host[NI_MAXHOST] = {};
    const int error = getnameinfo(get(), length_, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
    return error == 0 ? host : "";
  }

 private:
  sockaddr_storage storage_{};
  socklen_t length_;
};

}  // namespace fairshard::comm

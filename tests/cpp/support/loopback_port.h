#pragma once
// A port that a test has for itself.

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace fairshard::test {

/// A port of the loopback interface that nobody else gets while this object lives. It listens if it
/// is to be busy, and is closed again if not.
class LoopbackPort {
 public:
  explicit LoopbackPort(bool is_busy) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port_ = ntohs(address.sin_port);
    if (is_busy) {
      EXPECT_EQ(listen(socket_, 1), 0);
    } else {
      close(socket_);
      socket_ = -1;
    }
  }
  ~LoopbackPort() {
    if (socket_ >= 0) {
      close(socket_);
    }
  }
  LoopbackPort(const LoopbackPort&) = delete;
  LoopbackPort& operator=(const LoopbackPort&) = delete;

  int number() const { return port_; }
  /// Of the socket that listens.
  int descriptor() const { return socket_; }

 private:
  int socket_;
  int port_ = 0;
};

}  // namespace fairshard::test

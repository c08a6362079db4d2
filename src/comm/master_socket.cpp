#include "master_socket.h"

#include <c10/util/Exception.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

namespace fairshard::comm {
namespace {

constexpr int kMostWaiting = 4096;

}  // namespace

int listen_on_loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  const bool listens =
      server >= 0 && setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
      bind(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      listen(server, kMostWaiting) == 0;
  if (!listens) {
    const int error = errno;
    close(server);
    C10_THROW_ERROR(DistNetworkError, std::strerror(error));
  }
  return server;
}

c10::intrusive_ptr<c10d::Store> connect_in_time(const std::string& host,
                                                const c10d::TCPStoreOptions& options) {
  using StorePtr = c10::intrusive_ptr<c10d::Store>;
  const auto promise = std::make_shared<std::promise<StorePtr>>();
  auto future = promise->get_future();
  // It cannot be interrupted, and ends by itself some time later if nobody waits for it any more.
  std::thread([promise, host, options] {
    try {
      promise->set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (future.wait_for(options.timeout) != std::future_status::ready) {
    C10_THROW_ERROR(
        DistNetworkError,
        c10::str("no answer within ", static_cast<double>(options.timeout.count()) / 1000, " s"));
  }
  return future.get();
}

}  // namespace fairshard::comm

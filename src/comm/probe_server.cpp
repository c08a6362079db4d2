#include "probe_server.h"

#include "probe_wire.h"
#include "socket_address.h"

#include <c10/util/Exception.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <utility>
#include <vector>

namespace fairshard::comm {
namespace {

constexpr int kCallsWaiting = 4096;
constexpr size_t kReadAtOnce = 256 << 10;

int listen_at(const std::string& address) {
  const auto place = SocketAddress::parse(address, /*port=*/0);
  TORCH_CHECK_VALUE(place, "probe_links: the address to listen at is '", address,
                    "', which is no address in figures");
  const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
  const int listening = socket(place->family(), type, 0);
  if (listening < 0 || bind(listening, place->get(), place->length()) != 0 ||
      listen(listening, kCallsWaiting) != 0) {
    const int error = errno;
    close(listening);
    C10_THROW_ERROR(DistNetworkError,
                    c10::str("cannot listen at ", address, ": ", std::strerror(error)));
  }
  return listening;
}

int port_of(int listening) {
  sockaddr_storage own{};
  socklen_t length = sizeof(own);
  TORCH_CHECK(getsockname(listening, reinterpret_cast<sockaddr*>(&own), &length) == 0,
              "a socket has no address: ", std::strerror(errno));
  // It stands at the same place in both versions.
  return ntohs(reinterpret_cast<const sockaddr_in*>(&own)->sin_port);
}

/// One caller.
class ProbedLink {
 public:
  ProbedLink(int connection, int rank, uint64_t secret)
      : connection_(connection), rank_(rank), secret_(secret) {
    const int yes = 1;
    setsockopt(connection_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  }
  ~ProbedLink() { close(connection_); }
  ProbedLink(const ProbedLink&) = delete;
  ProbedLink& operator=(const ProbedLink&) = delete;

  int connection() const { return connection_; }

  /// Takes what has come; false if the link has ended, or speaks another language.
  bool take(std::vector<std::byte>& buffer) {
    const ssize_t length = recv(connection_, buffer.data(), buffer.size(), 0);
    if (length <= 0) {
      return length < 0 && (errno == EAGAIN || errno == EINTR);
    }
    const auto now = ProbeClock::now();
    const std::byte* next = buffer.data();
    auto left = static_cast<size_t>(length);
    while (left > 0) {
      size_t used = 0;
      if (payload_ > 0) {
        used = std::min<uint64_t>(payload_, left);
        payload_ -= used;
        meter_.add(used, now);
      } else {
        used = std::min(left, part_.bytes.size() - part_.have);
        std::memcpy(part_.bytes.data() + part_.have, next, used);
        part_.have += used;
        if (part_.have == part_.bytes.size() && !obey()) {
          return false;
        }
      }
      next += used;
      left -= used;
    }
    return true;
  }

 private:
  bool obey() {
    ProbeFrame frame;
    std::memcpy(&frame, part_.bytes.data(), sizeof(frame));
    part_.have = 0;
    if (!is_known_) {
      is_known_ = frame.kind == ProbeFrame::kHello && frame.value == secret_;
      return is_known_ && answer(ProbeFrame::kHello, secret_, 0);
    }
    if (frame.kind == ProbeFrame::kPing) {
      const auto clock = std::chrono::system_clock::now().time_since_epoch();
      const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(clock).count();
      return answer(ProbeFrame::kPing, static_cast<uint64_t>(ns), 0);
    }
    if (frame.kind == ProbeFrame::kData) {
      payload_ = frame.bytes;
      return true;
    }
    const RateMeter meter = std::exchange(meter_, {});
    return frame.kind == ProbeFrame::kEnd &&
           answer(ProbeFrame::kEnd, static_cast<uint64_t>(meter.bytes_per_s()), meter.bytes());
  }

  /// So little is either taken at once, or the caller does not read.
  bool answer(ProbeFrame::Kind kind, uint64_t value, uint64_t bytes) const {
    const ProbeFrame frame{kind, rank_, value, bytes};
    return send(connection_, &frame, sizeof(frame), MSG_NOSIGNAL) == sizeof(frame);
  }

  int connection_;
  int rank_;
  uint64_t secret_;
  bool is_known_ = false;
  PartOfFrame part_;
  uint64_t payload_ = 0;
  RateMeter meter_;
};

/// "0100007F" or four of them, as the kernel lists addresses.
std::string address_of_listed(const std::string& figures) {
  const bool is_short = figures.size() == 8;
  if (!is_short && figures.size() != 32) {
    return "";
  }
  uint32_t words[4] = {};
  for (size_t i = 0; i < figures.size() / 8; ++i) {
    words[i] = static_cast<uint32_t>(std::stoul(figures.substr(8 * i, 8), nullptr, 16));
  }
  if (is_short) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    std::memcpy(&address.sin_addr, words, sizeof(address.sin_addr));
    return SocketAddress(reinterpret_cast<sockaddr*>(&address), sizeof(address)).text();
  }
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  std::memcpy(&address.sin6_addr, words, sizeof(address.sin6_addr));
  return SocketAddress(reinterpret_cast<sockaddr*>(&address), sizeof(address)).text();
}

}  // namespace

ProbeServer::ProbeServer(const std::string& address, int rank, uint64_t secret)
    : rank_(rank), secret_(secret), listening_(listen_at(address)), wake_(eventfd(0, EFD_CLOEXEC)) {
  port_ = port_of(listening_);
  thread_ = std::thread([this] { answer_all(); });
}

ProbeServer::~ProbeServer() {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
  thread_.join();
  close(listening_);
  close(wake_);
}

void ProbeServer::answer_all() {
  std::vector<std::unique_ptr<ProbedLink>> links;
  std::vector<std::byte> buffer(kReadAtOnce);
  bool has_room = true;
  while (true) {
    std::vector<pollfd> events{{wake_, POLLIN, 0}, {has_room ? listening_ : -1, POLLIN, 0}};
    for (const auto& link : links) {
      events.push_back({link->connection(), POLLIN, 0});
    }
    if (poll(events.data(), events.size(), -1) < 0) {
      continue;  // interrupted
    }
    if (events[0].revents != 0) {
      return;
    }
    for (size_t i = 0; i < links.size(); ++i) {
      if (events[i + 2].revents != 0 && !links[i]->take(buffer)) {
        links[i].reset();
      }
    }
    std::erase(links, nullptr);
    if (events[1].revents != 0) {
      const int caller = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (caller >= 0) {
        links.push_back(std::make_unique<ProbedLink>(caller, rank_, secret_));
      }
      // Without a file left, a caller stays where it is, and is without an answer.
      has_room = caller >= 0 || (errno != EMFILE && errno != ENFILE);
    }
  }
}

std::set<std::string> ProbeServer::unheard_by() const {
  // The kernel's list of connections; those in this state wait for the caller's second message.
  const std::string called = "03";
  std::set<std::string> result;
  for (const char* const list : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(list);
    std::string line;
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const auto colon = local.find(':');
      if (state == called && colon != std::string::npos &&
          std::stoul(local.substr(colon + 1), nullptr, 16) == static_cast<unsigned>(port_)) {
        result.insert(address_of_listed(remote.substr(0, remote.find(':'))));
      }
    }
  }
  return result;
}

}  // namespace fairshard::comm

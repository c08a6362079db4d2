#include "probe_call.h"

#include "socket_address.h"

#include <c10/util/StringUtil.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

namespace fairshard::comm {
namespace {

constexpr int kMostRoundTrips = 20;

double seconds_since(ProbeClock::time_point begin) {
  return std::chrono::duration<double>(ProbeClock::now() - begin).count();
}

double clock_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool would_wait() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

ProbeCall::ProbeCall(Link& link, int port, const std::string& host, uint64_t secret,
                     double answer_s)
    : link_(link), secret_(secret), answer_s_(answer_s), begin_(ProbeClock::now()) {
  const auto there = SocketAddress::parse(host, port);
  if (there) {
    connection_ = socket(there->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  }
  // What waits in this machine would be counted as under way, and on a slow link last for seconds.
  const int yes = 1;
  const int waiting_bytes = 4 * kProbeChunk;
  if (!there) {
    fail("'" + host + "' is no address");
  } else if (connection_ < 0 ||
             setsockopt(connection_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) != 0 ||
             setsockopt(connection_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &waiting_bytes,
                        sizeof(waiting_bytes)) != 0 ||
             (connect(connection_, there->get(), there->length()) != 0 && errno != EINPROGRESS)) {
    fail(std::strerror(errno));
  }
}

ProbeCall::~ProbeCall() {
  if (connection_ >= 0) {
    close(connection_);
  }
}

void ProbeCall::fail(const std::string& reason) {
  link_.fault = c10::str("from rank ", link_.from, " to rank ", link_.to, ": ", reason);
  state_ = State::kFailed;
  if (connection_ >= 0) {
    close(connection_);
    connection_ = -1;
  }
}

void ProbeCall::fail_unanswered() {
  const bool has_connected = state_ != State::kConnecting && state_ != State::kGreeting;
  fail("");
  link_.fault = c10::str("no answer within ", answer_s_, " s from rank ", link_.from, " to rank ",
                         link_.to, has_connected ? ", though it had answered before" : "");
}

pollfd ProbeCall::event() const {
  const bool sends =
      state_ == State::kConnecting || state_ == State::kSending || state_ == State::kEnding;
  return {connection_, static_cast<short>(sends ? POLLOUT : POLLIN), 0};
}

void ProbeCall::put(const ProbeFrame& frame) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&frame);
  rest_.assign(bytes, bytes + sizeof(frame));
  rest_begin_ = 0;
}

bool ProbeCall::push_rest() {
  while (rest_begin_ < rest_.size()) {
    const ssize_t length =
        send(connection_, rest_.data() + rest_begin_, rest_.size() - rest_begin_, MSG_NOSIGNAL);
    if (length < 0) {
      if (!would_wait()) {
        fail(std::strerror(errno));
      }
      return false;
    }
    rest_begin_ += static_cast<size_t>(length);
  }
  return true;
}

bool ProbeCall::pull_frame() {
  const ssize_t length =
      recv(connection_, part_.bytes.data() + part_.have, part_.bytes.size() - part_.have, 0);
  if (length <= 0) {
    if (length == 0) {
      fail("hung up");
    } else if (!would_wait()) {
      fail(std::strerror(errno));
    }
    return false;
  }
  part_.have += static_cast<size_t>(length);
  if (part_.have < part_.bytes.size()) {
    return false;
  }
  std::memcpy(&got_, part_.bytes.data(), sizeof(got_));
  part_.have = 0;
  if (got_.rank != link_.to) {
    fail(c10::str("another program answers at ", link_.address));
    return false;
  }
  return true;
}

void ProbeCall::greet() {
  int error = 0;
  socklen_t length = sizeof(error);
  if (getsockopt(connection_, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
    return fail(std::strerror(error != 0 ? error : errno));
  }
  put({ProbeFrame::kHello, link_.from, secret_, 0});
  state_ = State::kGreeting;
  push_rest();  // the first bytes of a connection always have room
}

void ProbeCall::begin_transfer(ProbeClock::time_point until, uint64_t bytes) {
  until_ = until;
  bytes_left_ = bytes;
  rest_.clear();
  rest_begin_ = 0;
  state_ = State::kSending;
}

void ProbeCall::push_chunks() {
  // So many that others have their turn between them.
  constexpr int kAtOnce = 4;
  for (int i = 0; i < kAtOnce; ++i) {
    if (!push_rest()) {
      return;
    }
    if (bytes_left_ == 0 || ProbeClock::now() >= until_) {
      put({ProbeFrame::kEnd, link_.from, 0, 0});
      state_ = State::kEnding;
      return;
    }
    const uint64_t bytes = std::min<uint64_t>(bytes_left_, kProbeChunk);
    bytes_left_ -= bytes;
    put({ProbeFrame::kData, link_.from, 0, bytes});
    rest_.resize(rest_.size() + bytes);
  }
}

void ProbeCall::go_on() {
  switch (state_) {
    case State::kConnecting:
      return greet();
    case State::kGreeting:
      if (pull_frame()) {
        link_.connect_s = seconds_since(begin_);
        state_ = State::kOpen;
      }
      return;
    case State::kSending:
      return push_chunks();
    case State::kEnding:
      if (push_rest()) {
        state_ = State::kRating;
      }
      return;
    case State::kRating:
      if (pull_frame()) {
        bytes_per_s_ = static_cast<double>(got_.value);
        state_ = State::kOpen;
      }
      return;
    case State::kOpen:
    case State::kFailed:
      return;
  }
}

bool ProbeCall::ask(ProbeFrame::Kind kind) {
  put({kind, link_.from, 0, 0});
  const auto give_up = ProbeClock::now() + std::chrono::duration<double>(answer_s_);
  bool has_gone = false;
  while (!has_failed()) {
    has_gone = has_gone || push_rest();
    if (has_failed() || (has_gone && pull_frame())) {
      break;
    }
    const std::chrono::duration<double, std::milli> left = give_up - ProbeClock::now();
    if (left.count() <= 0) {
      fail_unanswered();
    } else if (!has_failed()) {
      pollfd wait{connection_, static_cast<short>(has_gone ? POLLIN : POLLOUT), 0};
      poll(&wait, 1, static_cast<int>(std::ceil(left.count())));
    }
  }
  return !has_failed();
}

void ProbeCall::measure_latency(double seconds) {
  double shortest = std::numeric_limits<double>::infinity();
  const auto begin = ProbeClock::now();
  for (int i = 0; i < kMostRoundTrips && (i == 0 || seconds_since(begin) < seconds); ++i) {
    const double clock_before = clock_s();
    const auto asked = ProbeClock::now();
    if (!ask(ProbeFrame::kPing)) {
      return;
    }
    const double round_trip = seconds_since(asked);
    if (round_trip < shortest) {
      shortest = round_trip;
      link_.latency_s = round_trip / 2;
      link_.clock_offset_s =
          static_cast<double>(got_.value) / 1e9 - (clock_before + round_trip / 2);
      link_.clock_error_s = round_trip / 2;
    }
  }
}

}  // namespace fairshard::comm

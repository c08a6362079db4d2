#pragma once
// The end of a probed link that calls: it asks, and sends.

#include "probe_wire.h"
#include <fairshard/comm/link.h>

#include <poll.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fairshard::comm {

/// A call of another rank, and what it has shown of the link. What goes wrong becomes the link's
/// fault, and ends the call.
class ProbeCall {
 public:
  /// Begins to connect. `secret` is what the other rank expects, `answer_s` how long it may take.
  ProbeCall(Link& link, int port, const std::string& host, uint64_t secret, double answer_s);
  ~ProbeCall();
  ProbeCall(const ProbeCall&) = delete;
  ProbeCall& operator=(const ProbeCall&) = delete;

  /// Whether the other rank has answered, and nothing has gone wrong since.
  bool is_open() const { return state_ == State::kOpen; }
  bool has_failed() const { return state_ == State::kFailed; }

  /// What go_on() waits for.
  pollfd event() const;
  /// Does what can be done without waiting.
  void go_on();
  void fail(const std::string& reason);
  /// Nobody has answered in time.
  void fail_unanswered();

  /// Round trips one after another, for some time or until there are enough. Blocks.
  void measure_latency(double seconds);

  /// Begins to send until a time has come or so many bytes have gone; go_on() continues, until the
  /// call is open again.
  void begin_transfer(ProbeClock::time_point until, uint64_t bytes);
  double measured_bytes_per_s() const { return bytes_per_s_; }

 private:
  enum class State { kConnecting, kGreeting, kOpen, kSending, kEnding, kRating, kFailed };

  void greet();
  /// Returns whether all of the rest has gone.
  bool push_rest();
  void push_chunks();
  /// Returns whether a whole frame has come.
  bool pull_frame();
  bool ask(ProbeFrame::Kind kind);
  void put(const ProbeFrame& frame);

  Link& link_;
  uint64_t secret_;
  double answer_s_;
  int connection_ = -1;
  State state_ = State::kConnecting;
  ProbeClock::time_point begin_;
  /// What is to be sent, from where on.
  std::vector<std::byte> rest_;
  size_t rest_begin_ = 0;
  PartOfFrame part_;
  ProbeFrame got_;
  ProbeClock::time_point until_;
  uint64_t bytes_left_ = 0;
  double bytes_per_s_ = 0;
};

using ProbeCalls = std::vector<std::unique_ptr<ProbeCall>>;

/// Goes on with all of them until each is open or has failed, or the time is over: then those that
/// are neither fail. `while_waiting` is called ten times a second while nothing comes.
template <typename Function>
void settle(ProbeCalls& calls, ProbeClock::time_point give_up, const Function& while_waiting) {
  constexpr int kLookMs = 100;
  while (true) {
    std::vector<pollfd> events;
    std::vector<ProbeCall*> waiting;
    for (const auto& call : calls) {
      if (!call->is_open() && !call->has_failed()) {
        events.push_back(call->event());
        waiting.push_back(call.get());
      }
    }
    if (waiting.empty()) {
      return;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(give_up - ProbeClock::now());
    if (left.count() <= 0) {
      for (ProbeCall* const call : waiting) {
        call->fail_unanswered();
      }
      return;
    }
    const auto wait_ms = static_cast<int>(std::min<int64_t>(left.count(), kLookMs));
    if (poll(events.data(), events.size(), wait_ms) == 0) {
      while_waiting();
    }
    for (size_t i = 0; i < waiting.size(); ++i) {
      if (events[i].revents != 0) {
        waiting[i]->go_on();
      }
    }
  }
}

}  // namespace fairshard::comm

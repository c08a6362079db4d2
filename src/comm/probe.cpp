#include "probe_call.h"
#include "probe_server.h"
#include <fairshard/comm/await_keys.h>
#include <fairshard/comm/probe.h>
#include <fairshard/comm/seconds.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <sstream>

namespace fairshard::comm {
namespace {

using Seconds = std::chrono::duration<double>;

/// A transfer takes no longer.
constexpr double kLongestSeconds = 0.5;

/// What a rank tells the others, in the store.
struct CalledPlace {
  std::string host;
  int port = 0;
  uint64_t secret = 0;

  std::string text() const { return c10::str(port, " ", secret, " ", host); }
  static CalledPlace read(const std::string& text) {
    CalledPlace place;
    std::istringstream(text) >> place.port >> place.secret >> place.host;
    return place;
  }
  std::string address() const {
    const bool has_colons = host.find(':') != std::string::npos;
    return host.empty() ? "" : c10::str(has_colons ? "[" : "", host, has_colons ? "]:" : ":", port);
  }
};

class Prober {
 public:
  Prober(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
         const std::string& address, const ProbeOptions& options)
      : store_(c10::make_intrusive<c10d::PrefixStore>("probe", store)),
        rank_(rank),
        size_(size),
        options_(options),
        transfer_s_(std::min(kLongestSeconds, options.transfers_s() / (size * (size - 1.0)))) {
    own_.host = address;
    if (!address.empty()) {
      std::random_device random;
      own_.secret = (uint64_t{random()} << 32) | random();
      server_.emplace(address, rank, own_.secret);
      own_.port = server_->port();
    }
  }

  Probe run() {
    read_places();
    call_all();
    for (int turn = 0; turn < size_; ++turn) {
      take_turn(turn);
    }
    send_together();
    Probe probe{links_, {unheard_by_.begin(), unheard_by_.end()}};
    // Nobody hangs up while others send.
    reached("end", options_.answer_s());
    return probe;
  }

 private:
  bool await(const std::vector<std::string>& keys, double seconds) const {
    return await_keys(store_, keys, seconds);
  }
  void set(const std::string& key, const std::string& value = "1") { store_->set(key, value); }

  /// This rank is at a place in the order of things; returns when the others are, too, or when they
  /// have had the time for it.
  void reached(const std::string& name, double seconds) {
    set(c10::str(name, "/", rank_));
    std::vector<std::string> keys;
    for (int rank = 0; rank < size_; ++rank) {
      if (is_there_[rank]) {
        keys.push_back(c10::str(name, "/", rank));
      }
    }
    await(keys, seconds);
  }

  void read_places() {
    set(c10::str("place/", rank_), own_.text());
    std::vector<std::string> keys;
    keys.reserve(size_);
    for (int rank = 0; rank < size_; ++rank) {
      keys.push_back(c10::str("place/", rank));
    }
    const bool are_all_there = await(keys, options_.answer_s());
    places_.resize(size_);
    is_there_.assign(size_, true);
    for (int rank = 0; rank < size_; ++rank) {
      is_there_[rank] = are_all_there || store_->check({keys[rank]});
      if (is_there_[rank]) {
        places_[rank] = CalledPlace::read(store_->get_to_str(keys[rank]));
      }
    }
  }

  void call_all() {
    links_.reserve(size_);  // calls refer to them
    for (int to = 0; to < size_; ++to) {
      if (to == rank_) {
        continue;
      }
      const CalledPlace& place = places_[to];
      links_.push_back({rank_, to, place.address(), ""});
      Link& link = links_.back();
      if (place.host.empty()) {
        link.fault = c10::str("rank ", to, is_there_[to] ? " does not listen" : " is not there");
        continue;
      }
      calls_.push_back(std::make_unique<ProbeCall>(link, place.port, place.host, place.secret,
                                                   options_.answer_s()));
      called_.push_back(&link);
    }
    const auto look = [this] {
      if (server_) {
        unheard_by_.merge(server_->unheard_by());
      }
    };
    settle(calls_, after(options_.answer_s()), look);
    reached("called", 2 * options_.answer_s());
  }

  /// The longest that a rank's turn takes.
  double turn_s() const { return 2 * size_ * transfer_s_ + options_.answer_s(); }

  void take_turn(int turn) {
    const std::string done = c10::str("done/", turn);
    if (turn != rank_) {
      // The rank itself ends it, or, if it has ended or hangs, the time.
      is_there_[turn] = is_there_[turn] && await({done}, turn_s() + 2 * options_.answer_s());
      return;
    }
    const auto end = after(turn_s());
    for (size_t i = 0; i < calls_.size(); ++i) {
      ProbeCall& call = *calls_[i];
      if (!call.is_open()) {
        continue;
      }
      if (ProbeClock::now() >= end) {
        called_[i]->fault = "not measured: the links before it took too long";
        continue;
      }
      call.measure_latency(transfer_s_);
      if (call.is_open()) {
        ProbeCalls one;
        one.push_back(std::move(calls_[i]));
        transfer(one, transfer_s_, static_cast<uint64_t>(options_.transfer_bytes()));
        calls_[i] = std::move(one.front());
        called_[i]->bytes_per_s = calls_[i]->measured_bytes_per_s();
      }
    }
    set(done);
  }

  void transfer(ProbeCalls& calls, double seconds, uint64_t bytes) const {
    const auto until = after(seconds);
    for (const auto& call : calls) {
      if (call->is_open()) {
        call->begin_transfer(until, bytes);
      }
    }
    settle(calls,
           until + std::chrono::duration_cast<ProbeClock::duration>(Seconds(options_.answer_s())),
           [] {});
  }

  void send_together() {
    reached("together", options_.answer_s());
    std::vector<bool> were_open;
    for (const auto& call : calls_) {
      were_open.push_back(call->is_open());
    }
    const auto bytes = 16 * static_cast<uint64_t>(options_.transfer_bytes());
    transfer(calls_, std::min(kLongestSeconds, options_.transfers_s()),
             bytes / static_cast<uint64_t>(size_ - 1));
    for (size_t i = 0; i < calls_.size(); ++i) {
      if (calls_[i]->is_open()) {
        called_[i]->together_bytes_per_s = calls_[i]->measured_bytes_per_s();
      } else if (were_open[i]) {
        called_[i]->fault += "; all ranks were sending";
      }
    }
  }

  static ProbeClock::time_point after(double seconds) {
    return ProbeClock::now() + std::chrono::duration_cast<ProbeClock::duration>(Seconds(seconds));
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  ProbeOptions options_;
  double transfer_s_;
  CalledPlace own_;
  std::optional<ProbeServer> server_;
  std::vector<CalledPlace> places_;
  /// Ranks that have said anything.
  std::vector<bool> is_there_;
  std::vector<Link> links_;
  ProbeCalls calls_;
  /// The link of each call.
  std::vector<Link*> called_;
  std::set<std::string> unheard_by_;
};

}  // namespace

Probe probe_links(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                  const std::string& address, const ProbeOptions& options) {
  TORCH_CHECK_VALUE(size >= 1 && rank >= 0 && rank < size, "probe_links: rank ", rank, " of ",
                    size);
  TORCH_CHECK_VALUE(options.transfer_bytes() > 0, "transfer_bytes is ", options.transfer_bytes(),
                    ", but must be above 0");
  to_timeout(options.answer_s(), "answer_s");
  to_timeout(options.transfers_s(), "transfers_s");
  if (size == 1) {
    return {};
  }
  return Prober(store, rank, size, address, options).run();
}

}  // namespace fairshard::comm

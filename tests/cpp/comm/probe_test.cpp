// Links between ranks that are threads here: measured, refused, taken by strangers, without answer.
#include "../../../src/comm/probe_wire.h"
#include "support/expect_error.h"
#include "support/loopback_port.h"
#include <fairshard/comm.h>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace fairshard::comm {
namespace probe_test {

using std::chrono::milliseconds;
using test::LoopbackPort;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

const auto kQuick = ProbeOptions().transfers_s(0.2).transfer_bytes(1 << 20);
/// Where somebody is waited for in vain.
const auto kImpatient = ProbeOptions(kQuick).answer_s(0.3);

/// What each of the ranks has found; those that are not among `present` never come.
std::vector<Probe> probe_as(const std::vector<int>& present, int size,
                            const std::vector<std::string>& addresses, const StorePtr& store,
                            const ProbeOptions& options = kQuick) {
  std::vector<Probe> found(size);
  std::vector<std::thread> threads;
  for (const int rank : present) {
    threads.emplace_back(
        [&, rank] { found[rank] = probe_links(store, rank, size, addresses[rank], options); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  return found;
}

TEST(ProbeLinks, AreMeasuredInBothDirections) {
  for (const int size : {2, 4}) {
    std::vector<int> ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto found = probe_as(ranks, size, std::vector<std::string>(size, "127.0.0.1"),
                                c10::make_intrusive<c10d::HashStore>());
    for (int from = 0; from < size; ++from) {
      ASSERT_EQ(found[from].links.size(), static_cast<size_t>(size - 1));
      EXPECT_TRUE(found[from].unheard_by.empty());
      for (const auto& link : found[from].links) {
        EXPECT_EQ(link.from, from);
        EXPECT_NE(link.to, from);
        EXPECT_EQ(link.fault, "");
        EXPECT_EQ(link.address.rfind("127.0.0.1:", 0), 0u) << link.address;
        for (const double value : {link.connect_s, link.latency_s, link.clock_error_s}) {
          EXPECT_GT(value, 0);
          EXPECT_LT(value, 5);
        }
        // Threads have one clock.
        EXPECT_LE(std::abs(link.clock_offset_s), link.clock_error_s + 1e-6);
        EXPECT_GT(link.bytes_per_s, 1e6);
        EXPECT_GT(link.together_bytes_per_s, 1e6);
      }
    }
  }
}

TEST(ProbeLinks, GoThroughTheSixthVersionOfTheProtocol) {
  const auto found = probe_as({0, 1}, 2, {"::1", "::1"}, c10::make_intrusive<c10d::HashStore>());
  EXPECT_EQ(found[1].links[0].fault, "");
  EXPECT_EQ(found[1].links[0].address.rfind("[::1]:", 0), 0u) << found[1].links[0].address;
}

TEST(ProbeLinks, ARankThatDoesNotComeIsAFaultOfItsLinks) {
  const auto found = probe_as({0, 1}, 3, {"127.0.0.1", "127.0.0.1", ""},
                              c10::make_intrusive<c10d::HashStore>(), kImpatient);
  EXPECT_EQ(found[0].links[0].fault, "");
  EXPECT_GT(found[0].links[0].bytes_per_s, 0);
  EXPECT_EQ(found[0].links[1].fault, "rank 2 is not there");
}

TEST(ProbeLinks, ARankWithoutAnAddressCallsAndIsNotCalled) {
  const auto found = probe_as({0, 1}, 2, {"127.0.0.1", ""}, c10::make_intrusive<c10d::HashStore>());
  EXPECT_EQ(found[0].links[0].fault, "rank 1 does not listen");
  EXPECT_EQ(found[1].links[0].fault, "");
}

/// The fault of rank 0's link to a rank 1 that the stranger stands for, which takes what it is
/// told.
std::string fault_with(const LoopbackPort& stranger) {
  const StorePtr store = c10::make_intrusive<c10d::HashStore>();
  store->set("probe/place/1", std::to_string(stranger.number()) + " 7 127.0.0.1");
  return probe_as({0}, 2, {"127.0.0.1", ""}, store, kImpatient)[0].links[0].fault;
}

TEST(ProbeLinks, APortWithoutAListenerRefuses) {
  EXPECT_EQ(fault_with(LoopbackPort(/*is_busy=*/false)),
            "from rank 0 to rank 1: Connection refused");
}

TEST(ProbeLinks, SilenceHasALimit) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(fault_with(LoopbackPort(/*is_busy=*/true)),
            "no answer within 0.3 s from rank 0 to rank 1");
  // A few times the limit, for what else waits for rank 1.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, milliseconds(8000));
}

TEST(ProbeLinks, AnotherProgramIsNotTakenForARank) {
  const LoopbackPort stranger(/*is_busy=*/true);
  std::thread answers([&] {
    const int caller = accept(stranger.descriptor(), nullptr, nullptr);
    char hello[sizeof(ProbeFrame)];
    EXPECT_EQ(recv(caller, hello, sizeof(hello), MSG_WAITALL), ssize_t{sizeof(hello)});
    const std::string page = "HTTP/1.1 400 Bad Request\r\n\r\n";
    EXPECT_GT(send(caller, page.data(), page.size(), MSG_NOSIGNAL), 0);
    close(caller);
  });
  const std::string fault = fault_with(stranger);
  answers.join();
  EXPECT_EQ(fault, "from rank 0 to rank 1: another program answers at 127.0.0.1:" +
                       std::to_string(stranger.number()));
}

/// A rank that ends while it is sent to.
TEST(ProbeLinks, AConnectionThatBreaksOffIsTold) {
  const LoopbackPort stranger(/*is_busy=*/true);
  std::thread answers([&] {
    const int caller = accept(stranger.descriptor(), nullptr, nullptr);
    ProbeFrame frame;
    EXPECT_EQ(recv(caller, &frame, sizeof(frame), MSG_WAITALL), ssize_t{sizeof(frame)});
    EXPECT_EQ(frame.kind, ProbeFrame::kHello);
    EXPECT_EQ(frame.value, 7u);
    frame.rank = 1;
    EXPECT_EQ(send(caller, &frame, sizeof(frame), MSG_NOSIGNAL), ssize_t{sizeof(frame)});
    EXPECT_EQ(recv(caller, &frame, sizeof(frame), MSG_WAITALL), ssize_t{sizeof(frame)});
    EXPECT_EQ(frame.kind, ProbeFrame::kPing);
    close(caller);
  });
  const std::string fault = fault_with(stranger);
  answers.join();
  EXPECT_EQ(fault, "from rank 0 to rank 1: hung up");
}

TEST(ProbeLinks, NamesWhatIsWrong) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  test::expect_error([&] { probe_links(store, 2, 2, "127.0.0.1"); }, {"rank 2 of 2"});
  test::expect_error([&] { probe_links(store, 0, 2, "localhost"); }, {"'localhost'", "figures"});
  test::expect_error([&] { probe_links(store, 0, 2, "127.0.0.1", ProbeOptions().answer_s(0)); },
                     {"answer_s is 0"});
  test::expect_error(
      [&] { probe_links(store, 0, 2, "127.0.0.1", ProbeOptions().transfer_bytes(0)); },
      {"transfer_bytes is 0"});
  // An address of the documentation's network, which is no machine's.
  test::expect_error([&] { probe_links(store, 0, 2, "192.0.2.77"); },
                     {"cannot listen at 192.0.2.77", "assign"});
}

TEST(RateMeter, LeavesOutWhatHasComeAtOnceInTheBeginning) {
  RateMeter meter;
  const auto begin = ProbeClock::now();
  EXPECT_EQ(meter.bytes_per_s(), 0);
  meter.add(1'000'000, begin);
  EXPECT_EQ(meter.bytes_per_s(), 0);  // nobody knows since when
  for (int i = 1; i <= 100; ++i) {
    meter.add(1000, begin + milliseconds(i));
  }
  EXPECT_NEAR(meter.bytes_per_s(), 1e6, 1e4);
  EXPECT_EQ(meter.bytes(), 1'100'000u);
}

TEST(RateMeter, TakesBytesThatComeTooOftenTogether) {
  RateMeter meter;
  const auto begin = ProbeClock::now();
  for (int i = 0; i <= 100'000; ++i) {
    meter.add(10, begin + std::chrono::microseconds(i));
  }
  EXPECT_NEAR(meter.bytes_per_s(), 1e7, 1e5);
}

TEST(InterfaceAddresses, HaveTheLoopback) {
  bool is_there = false;
  for (const auto& each : interface_addresses()) {
    is_there = is_there || (each.address == "127.0.0.1" && each.is_loopback && each.is_up);
  }
  EXPECT_TRUE(is_there);
  EXPECT_EQ(source_address("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(source_address("nonsense"), "");
}

/// A variable of this process, while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(ListeningPlace, IsWhatTheProcessGroupTakes) {
  const Variable no_interface("GLOO_SOCKET_IFNAME", nullptr);
  const auto one = listening_place(true);
  EXPECT_EQ(one.address, "127.0.0.1");
  EXPECT_EQ(one.interface, "lo");
  EXPECT_EQ(one.chosen_by, "one machine");
  const auto many = listening_place(false);
  EXPECT_NE(many.address, "");
  EXPECT_TRUE(many.chosen_by == "host name" || many.chosen_by == "nothing") << many.chosen_by;
}

TEST(ListeningPlace, FollowsTheVariable) {
  {
    const Variable first("GLOO_SOCKET_IFNAME", "lo,eth7");
    const auto place = listening_place(false);
    EXPECT_EQ(place.address, "127.0.0.1");
    EXPECT_EQ(place.chosen_by, "GLOO_SOCKET_IFNAME");
  }
  const Variable absent("GLOO_SOCKET_IFNAME", "eth77");
  const auto place = listening_place(false);
  EXPECT_EQ(place.address, "");
  EXPECT_EQ(
      place.fault.rfind("GLOO_SOCKET_IFNAME is eth77, which has no address here; there are ", 0),
      0u)
      << place.fault;
}

TEST(Resolve, GivesAddressesOrSaysWhyNot) {
  EXPECT_EQ(resolve("127.0.0.1").addresses, std::vector<std::string>{"127.0.0.1"});
  EXPECT_FALSE(resolve("no-such-host.invalid").fault.empty());
}

}  // namespace probe_test
}  // namespace fairshard::comm

// How ranks meet, and what they are told when they do not.
#include "support/expect_error.h"
#include "support/loopback_port.h"
#include <fairshard/comm.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace fairshard::comm {
namespace init_test {

using test::LoopbackPort;

Environment tcp_environment(int rank, int world_size, int port) {
  Environment env;
  env.rank = env.local_rank = rank;
  env.world_size = env.local_world_size = world_size;
  env.master_addr = "127.0.0.1";
  env.master_port = port;
  return env;
}

TEST(Init, OneRankNeedsNothing) {
  const Group group = init_process_group(Environment{});
  EXPECT_EQ(group.size(), 1);
  at::Tensor tensor = at::ones({3});
  all_reduce(group, tensor).wait();
  EXPECT_EQ(group.backend_name(c10::DeviceType::CPU), "fairshard");
}

TEST(Init, RanksMeetAtAPort) {
  const int port = LoopbackPort(false).number();
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      errors[rank] = test::error_of([&] {
        const Group group = init_process_group(tcp_environment(rank, 3, port));
        at::Tensor tensor = at::ones({3});
        all_reduce(group, tensor).wait();
        TORCH_CHECK(tensor[0].item<float>() == 3, "wrong sum");
        // Rank 0 serves the store, so it must not leave first.
        barrier(group);
      });
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(Init, ABusyPortIsNamed) {
  const LoopbackPort port(true);
  test::expect_error([&] { init_process_group(tcp_environment(0, 2, port.number())); },
                     {"rank 0 of 2", "MASTER_PORT=" + std::to_string(port.number()), "busy"});
}

TEST(Init, AMissingServerIsNamed) {
  const int port = LoopbackPort(false).number();
  test::expect_error(
      [&] { init_process_group(tcp_environment(1, 2, port), GroupOptions().timeout_s(0.3)); },
      {"rank 1 of 2", "MASTER_ADDR=127.0.0.1", std::to_string(port), "rank 0"});
}

TEST(Init, AServerThatSaysNothingIsGivenUpInTime) {
  const LoopbackPort port(true);  // connections come to be, and nobody answers
  const auto start = std::chrono::steady_clock::now();
  test::expect_error(
      [&] {
        init_process_group(tcp_environment(1, 2, port.number()), GroupOptions().timeout_s(0.3));
      },
      {"rank 1 of 2", "no answer within 0.3"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

/// The addresses at which this machine listens on a port, as /proc has them.
std::vector<std::string> listeners_on(int port) {
  std::vector<std::string> addresses;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream fields(line);
      std::string number;
      std::string local;
      std::string remote;
      std::string state;
      fields >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (state == "0A" && std::stoi(local.substr(colon + 1), nullptr, 16) == port) {
        addresses.push_back(local.substr(0, colon));
      }
    }
  }
  return addresses;
}

TEST(Init, TheStoreOfOneMachineListensOnLoopbackAlone) {
  const int port = LoopbackPort(false).number();
  std::vector<std::string> seen;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Environment env = tcp_environment(rank, 2, port);
      env.master_addr = "any.name.of.this.machine";
      const Group group = init_process_group(env);
      if (rank == 0) {
        seen = listeners_on(port);
      }
      barrier(group);
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(seen, std::vector<std::string>{"0100007F"});
}

TEST(Init, MissingPeersAreNamedAfterTheTimeout) {
  const int port = LoopbackPort(false).number();
  test::expect_error(
      [&] { init_process_group(tcp_environment(0, 4, port), GroupOptions().timeout_s(0.3)); },
      {"rank 0 of 4", "0.3", "rank(s) 1, 2, 3", "did not come"});
}

TEST(Init, AFolderThatOthersCanWriteToIsRefused) {
  std::string folder = testing::TempDir() + "fairshard-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  Environment env;
  env.world_size = env.local_world_size = 2;
  env.store_file = folder + "/store";
  test::expect_error([&] { init_process_group(env); }, {folder, "not this user's alone"});
  std::filesystem::remove_all(folder);
}

TEST(Init, ABadTimeoutIsNamed) {
  test::expect_error([] { init_process_group(Environment{}, GroupOptions().timeout_s(-1)); },
                     {"timeout_s", "-1"});
}

}  // namespace init_test
}  // namespace fairshard::comm

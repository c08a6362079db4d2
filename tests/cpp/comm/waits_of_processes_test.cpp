// Ranks that are stopped or killed are named, and signals have tables written. A file of its own,
// because launch forks.
#include "support/expect_error.h"
#include "support/hanging_backend.h"
#include <fairshard/comm.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <optional>

namespace fairshard::comm {
namespace waits_of_processes_test {

using test::await_all;
using test::explain_until;
using test::group_over;
using test::HangingBackend;
using test::has;
using test::kSoon_s;
using test::pids_of;
using test::StorePtr;

/// By a rank that launch() ends, or whose own failure would not be the first.
class Answer {
 public:
  Answer() { EXPECT_EQ(pipe(ends_), 0); }
  ~Answer() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;

  void give() const { TORCH_CHECK(write(ends_[1], "y", 1) == 1, "the pipe is broken"); }
  bool was_given() const {
    pollfd end{ends_[0], POLLIN, 0};
    return poll(&end, 1, 0) == 1;
  }

 private:
  int ends_[2];
};

TEST(WaitsOfProcesses, AStoppedRankIsNamed) {
  launch(
      3,
      [](Group group) {
        explain_waits_after(group, kSoon_s);
        const auto pids = pids_of(group);
        note_step(group, 41);
        if (group.rank() == 2) {
          explain_waits(group);  // by then it has said where it runs
          raise(SIGSTOP);
        }
        const at::Tensor values = at::ones({4096});
        Work work = all_reduce(group, values, ReduceOp::kSum, "bucket 3");
        if (group.rank() == 0) {
          explain_until(group,
                        {c10::str("rank 2 (pid ", pids[2], " on "), "is stopped, by a SIGSTOP",
                         "all were last together in all_gather #0 of Long[3] 'pids', ",
                         " ago, after step 41"},
                        {{0, "all_reduce #1 of Float[4096] (sum) 'bucket 3', waits for rank "},
                         {1, c10::str("pid ", pids[1])},
                         {2, "is stopped"}});
          kill(static_cast<pid_t>(pids[2]), SIGCONT);
        }
        work.wait();
        TORCH_CHECK(values[0].item<float>() == 3, "the wait did not go on as before");
      },
      LaunchOptions().timeout_s(test::kWaits_timeout_s));
}

TEST(WaitsOfProcesses, AKilledRankIsNamed) {
  Answer answer;
  test::expect_error(
      [&] {
        launch(
            3,
            [&](Group group) {
              explain_waits_after(group, kSoon_s);
              const auto pids = pids_of(group);
              const auto store = group.process_group()->getStore();
              await_all(group);
              if (group.rank() == 2) {
                explain_waits(group);  // by then it has said where it runs
                raise(SIGKILL);
              }
              if (group.rank() == 0) {
                explain_until(group,
                              {"has ended; all were last together in ",
                               c10::str("verdict: rank 2 (pid ", pids[2], " on ")},
                              {{2, "has ended"}});
                answer.give();
                store->set("told", "1");
              } else {
                store->wait({"told"}, std::chrono::seconds(60));
              }
            },
            LaunchOptions().timeout_s(test::kWaits_timeout_s).grace_s(30));
      },
      {"rank 2 of 3", "signal 9"});
  EXPECT_TRUE(answer.was_given());
}

/// A store that rank 0 serves, on a port that is free.
StorePtr served_store(const Group& group) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = group.rank() == 0;
  options.waitWorkers = false;
  c10::intrusive_ptr<c10d::TCPStore> store;
  if (options.isServer) {
    store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  const at::Tensor port = at::full({1}, int64_t{store ? store->getPort() : 0});
  broadcast(group, port, 0).wait();
  if (!store) {
    options.port = static_cast<uint16_t>(port.item<int64_t>());
    store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }
  return store;
}

/// What rank 1 finds out when rank 0, which serves the store, gets this signal. Then it tells.
void expect_without_store(const Group& group, int signal, const std::string& words,
                          const std::function<void()>& tell) {
  const auto pids = pids_of(group);
  const auto backend = c10::make_intrusive<HangingBackend>(group.rank(), group.size(), "nccl");
  std::optional<Group> other = group_over(served_store(group), group.rank(), group.size(), backend);
  const at::Tensor values = at::ones({16});
  all_reduce(*other, values, ReduceOp::kSum, "early");
  if (group.rank() == 1) {
    explain_waits(*other);  // the store is there so far
  }
  await_all(group);
  if (group.rank() == 0) {
    raise(signal);
  } else {
    const Work work = all_reduce(*other, values, ReduceOp::kSum, "late");
    explain_until(*other,
                  {"rank 0 was not heard: " + words,
                   "; all were last together in all_reduce #0 of Float[16] 'early', "},
                  {{1, "all_reduce #1 of Float[16] 'late'"}});
    const auto before = std::chrono::steady_clock::now();
    other.reset();
    const auto time = std::chrono::steady_clock::now() - before;
    TORCH_CHECK(time < std::chrono::seconds(10), "the group's end has waited for the store");
    tell();
    kill(static_cast<pid_t>(pids[0]), SIGCONT);
  }
  barrier(group);
}

TEST(WaitsOfProcesses, AStoppedProcessThatServesTheStoreHoldsUpNobody) {
  launch(
      2,
      [](Group group) {
        expect_without_store(group, SIGSTOP, "the store of the group does not answer: the process",
                             [] {});
      },
      LaunchOptions().timeout_s(test::kWaits_timeout_s));
}

TEST(WaitsOfProcesses, TheEndOfTheStoreIsTold) {
  Answer answer;
  test::expect_error(
      [&] {
        launch(
            2,
            [&](Group group) {
              expect_without_store(group, SIGKILL,
                                   "the group's store has failed: ", [&] { answer.give(); });
            },
            LaunchOptions().timeout_s(test::kWaits_timeout_s).grace_s(30));
      },
      {"rank 0 of 2", "signal 9"});
  EXPECT_TRUE(answer.was_given());
}

/// Stderr of all ranks, which one of them reads.
class Log {
 public:
  Log() { EXPECT_EQ(pipe(ends_), 0); }
  ~Log() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// This rank writes into it from now on.
  void take_stderr() const { dup2(ends_[1], STDERR_FILENO); }

  /// Returns when these words were written, and what came before and was not returned so far.
  std::string read_until(const std::string& words) {
    size_t found = 0;
    char some[512];
    while ((found = said_.find(words)) == std::string::npos) {
      const ssize_t length = read(ends_[0], some, sizeof(some));
      TORCH_CHECK(length > 0, "the pipe is broken");
      said_.append(some, length);
    }
    const std::string text = said_.substr(0, found + words.size());
    said_.erase(0, text.size());
    return text;
  }

 private:
  int ends_[2];
  std::string said_;
};

TEST(WaitsOfProcesses, EachSignalIsFollowedByATable) {
  Log log;
  launch(
      2,
      [&](Group group) {
        log.take_stderr();
        explain_waits_after(group, kSoon_s);
        explain_waits_on_signal(SIGUSR1);
        barrier(group);
        if (group.rank() == 1) {
          for (int time = 0; time < 20; ++time) {
            raise(SIGUSR1);
            log.read_until("what the 2 ranks of a group wait for, as rank 1 has gathered it");
            log.read_until("verdict: ");
          }
        }
        barrier(group);
      },
      LaunchOptions().timeout_s(test::kWaits_timeout_s));
  test::expect_error([] { explain_waits_on_signal(SIGKILL); }, {"signal 9", "cannot be handled"});
}

TEST(WaitsOfProcesses, RanksThatAllWaitAnswerSignalsThatComeTogether) {
  Log log;
  launch(
      4,
      [&](Group group) {
        log.take_stderr();
        explain_waits_on_signal(SIGUSR1);
        const Group all = group.duplicate();  // all wait in this one, but for who asks them
        const auto pids = pids_of(all);
        explain_waits_after(all, kSoon_s);
        if (group.rank() != 3) {
          barrier(all, "the last");
          return;
        }
        explain_until(
            all, {},
            {{0, "barrier #1"}, {1, "barrier #1"}, {2, "barrier #1"}, {3, "no collective"}});
        log.read_until("verdict: ");  // without being asked, which happens once
        for (int time = 0; time < 5; ++time) {
          for (const int rank : {0, 1, 0, 1, 2}) {
            kill(static_cast<pid_t>(pids[rank]), SIGUSR1);
          }
          std::string said;
          for (const int rank : {0, 1, 2}) {
            const auto title = c10::str("as rank ", rank, " has gathered it");
            while (!has(said, title)) {
              said += log.read_until("verdict: ");
            }
          }
        }
        barrier(all, "the last");
      },
      LaunchOptions().timeout_s(test::kWaits_timeout_s));
}

}  // namespace waits_of_processes_test
}  // namespace fairshard::comm

// Ranks that wait for each other are explained, whatever holds them up. Processes that are stopped
// or killed come first, because launch forks.
#include "support/expect_error.h"
#include <fairshard/comm.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

namespace fairshard::comm {
namespace waits_test {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Soon, in a test. Ranks look for questions after half of it.
constexpr double kSoon_s = 0.1;
constexpr double kTimeout_s = 120;

bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

/// The row of a rank in a table.
std::string row(const std::string& table, int rank) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(c10::str("  ", rank, " "), 0) == 0) {
      return line;
    }
  }
  return "";
}

/// Asks until the table says so, and rows of these ranks do: others may be on their way to where
/// they will wait.
std::string explain_until(const Group& group, const std::vector<std::string>& words,
                          const std::vector<std::pair<int, std::string>>& rows = {}) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::string table;
  do {
    table = explain_waits(group);
    if (std::all_of(words.begin(), words.end(),
                    [&](const auto& each) { return has(table, each); }) &&
        std::all_of(rows.begin(), rows.end(),
                    [&](const auto& each) { return has(row(table, each.first), each.second); })) {
      return table;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  for (const auto& [rank, each] : rows) {
    TORCH_CHECK(has(row(table, rank), each), "rank ", rank, ": no '", each, "' in: ", table);
  }
  TORCH_CHECK(false, "no '", c10::Join("' and '", words), "' in: ", table);
}

void require(const std::string& text, const std::string& words) {
  TORCH_CHECK(has(text, words), "no '", words, "' in: ", text);
}

/// The pids of all ranks.
std::vector<int64_t> pids_of(const Group& group) {
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  all_gather(group, all, at::full({1}, int64_t{getpid()}), "pids").wait();
  const auto* const numbers = all.const_data_ptr<int64_t>();
  return {numbers, numbers + all.numel()};
}

/// Ends when it is told to.
class HeldWork final : public c10d::Work {
 public:
  explicit HeldWork(bool is_stream) : is_stream_(is_stream) {}
  bool isCompleted() override { return has_ended_; }
  bool isSuccess() const override { return has_ended_; }
  bool wait(std::chrono::milliseconds) override {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [&] { return is_stream_ || has_ended_ || has_failed_; });
    TORCH_CHECK(!has_failed_, "too late");
    return true;
  }
  void abort() override { fail(); }
  void end() {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    cv_.notify_all();
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    has_failed_ = true;
    cv_.notify_all();
  }

 private:
  bool is_stream_;
  std::atomic<bool> has_ended_ = false;
  bool has_failed_ = false;
};

/// As "nccl" it tells when collectives have ended, and a wait is a stream's. All of them hang.
class HangingBackend final : public c10d::Backend {
 public:
  HangingBackend(int rank, int size, std::string name)
      : c10d::Backend(rank, size), name_(std::move(name)) {}
  const std::string getBackendName() const override { return name_; }
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override { return start(); }
  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override { return start(); }
  void end_all() {
    for (const auto& work : works_) {
      work->end();
    }
  }
  void fail_all() {
    for (const auto& work : works_) {
      work->fail();
    }
  }

 private:
  WorkPtr start() {
    works_.push_back(c10::make_intrusive<HeldWork>(name_ == "nccl"));
    return works_.back();
  }

  std::string name_;
  std::vector<c10::intrusive_ptr<HeldWork>> works_;
};

/// A group of these ranks over another backend for CPU tensors.
Group group_over(const StorePtr& store, int rank, int size,
                 const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto made = c10::make_intrusive<c10d::ProcessGroup>(
      c10::make_intrusive<c10d::PrefixStore>(backend->getBackendName(), store), rank, size);
  made->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  made->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  Group result(made);
  explain_waits_after(result, kSoon_s);
  return result;
}

Group group_over(const Group& like, const c10::intrusive_ptr<c10d::Backend>& backend) {
  return group_over(like.process_group()->getStore(), like.rank(), like.size(), backend);
}

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
      LaunchOptions().timeout_s(kTimeout_s));
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
            LaunchOptions().timeout_s(kTimeout_s).grace_s(30));
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
  barrier(group);
  if (group.rank() == 0) {
    raise(signal);
  } else {
    const Work work = all_reduce(*other, values, ReduceOp::kSum, "late");
    const auto table = explain_waits(*other);
    require(table, "rank 0 was not heard: " + words);
    require(table, "; all were last together in all_reduce #0 of Float[16] 'early', ");
    require(row(table, 1), "all_reduce #1 of Float[16] 'late'");
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
      LaunchOptions().timeout_s(kTimeout_s));
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
            LaunchOptions().timeout_s(kTimeout_s).grace_s(30));
      },
      {"rank 0 of 2", "signal 9"});
  EXPECT_TRUE(answer.was_given());
}

TEST(WaitsOfProcesses, ASignalHasTheTableWritten) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  launch(
      2,
      [&](Group group) {
        dup2(ends[1], STDERR_FILENO);
        explain_waits_after(group, kSoon_s);
        explain_waits_on_signal(SIGUSR1);
        barrier(group);
        if (group.rank() == 1) {
          raise(SIGUSR1);
          // Until it was written: the other rank waits meanwhile.
          std::string said;
          char some[512];
          while (!has(said, "verdict: ")) {
            const ssize_t length = read(ends[0], some, sizeof(some));
            TORCH_CHECK(length > 0, "the pipe is broken");
            said.append(some, length);
          }
          require(said, "what the 2 ranks of a group wait for");
        }
        barrier(group);
      },
      LaunchOptions().timeout_s(kTimeout_s));
  close(ends[0]);
  close(ends[1]);
  test::expect_error([] { explain_waits_on_signal(SIGKILL); }, {"signal 9", "cannot be handled"});
}

TEST(Waits, ALateRankIsNamedAndTheWaitGoesOn) {
  launch_threads(3, [](Group group) {
    explain_waits_after(group, kSoon_s);
    note_step(group, 7);
    const at::Tensor values = at::ones({8});
    all_reduce(group, values, ReduceOp::kSum, "bucket 0").wait();
    if (group.rank() == 2) {
      explain_until(group,
                    {"rank 2 has not started all_reduce #1 of Float[8]",
                     "'bucket 1': it is in no collective, and its last was all_reduce #0",
                     " ago, after step 7"},
                    {{0, "all_reduce #1 of Float[8] (sum) 'bucket 1'"},
                     {1, "waits for rank 2 to come"},
                     {2, "no collective; last all_reduce #0 of Float[8] (sum) 'bucket 0'"}});
    }
    all_reduce(group, values, ReduceOp::kSum, "bucket 1").wait();
    TORCH_CHECK(values[0].item<float>() == 9, "wrong sum");
  });
}

TEST(Waits, AreExplainedInTheLogAndInTheErrorOfTheTimeout) {
  testing::internal::CaptureStderr();
  std::mutex mutex;
  std::vector<std::string> errors(3);
  launch_threads(
      3,
      [&](Group group) {
        explain_waits_after(group, kSoon_s);
        const auto store = group.process_group()->getStore();
        if (group.rank() == 2) {  // alive, but elsewhere
          store->wait({"0 gave up", "1 gave up"}, std::chrono::seconds(60));
          return;
        }
        const std::string error = test::error_of(
            [&] { all_reduce(group, at::ones({4}), ReduceOp::kSum, "lonely").wait(); });
        store->set(c10::str(group.rank(), " gave up"), "1");
        const std::lock_guard lock(mutex);
        errors[group.rank()] = error;
      },
      LaunchOptions().timeout_s(4));
  const std::string log = testing::internal::GetCapturedStderr();
  for (const int rank : {0, 1}) {
    EXPECT_TRUE(has(errors[rank], "timed out")) << errors[rank];
    EXPECT_TRUE(has(errors[rank],
                    "What the ranks said meanwhile: rank 2 has not started all_reduce #0 of "
                    "Float[4] (sum) 'lonely': it is in no collective, and has been in none before"))
        << errors[rank];
    EXPECT_TRUE(has(log, c10::str("rank ", rank, " of 3 has waited for "))) << log;
  }
  const std::string title = "what the 3 ranks of a group wait for";
  EXPECT_TRUE(has(log, title)) << log;
  EXPECT_EQ(log.find(title), log.rfind(title)) << "one table is enough: " << log;
}

TEST(Waits, ASkippedCollectiveIsNamed) {
  launch_threads(2, [](Group group) {
    explain_waits_after(group, kSoon_s);
    const at::Tensor values = at::ones({8});
    for (int bucket = 0; bucket < 3; ++bucket) {
      if (bucket == 1 && group.rank() == 1) {
        continue;  // all buckets look alike: until the last one nobody notices
      }
      Work work = all_reduce(group, values);
      if (bucket < 2 || group.rank() == 1) {
        work.wait();
      }
    }
    explain_until(group,
                  {"rank 1 has not started all_reduce #2 of Float[8]",
                   "it is in no collective, and its last was all_reduce #1 of Float[8] (sum), "},
                  {{0, "all_reduce #2 of Float[8] (sum), waits for rank 1 to come"}});
  });
}

TEST(Waits, RanksThatDoNotWaitSaySo) {
  launch_threads(2, [](Group group) {
    const Group idle = group.duplicate();
    explain_waits_after(idle, kSoon_s);
    if (group.rank() == 0) {
      const auto table = explain_waits(idle);
      require(table, "verdict: no rank waits in a collective");
      require(row(table, 1), "no collective so far");
    }
    barrier(group);
  });
  launch_threads(1, [](Group group) { require(explain_waits(group), "waits for nobody"); });
}

TEST(Waits, BadInputIsNamed) {
  launch_threads(3, [](Group group) {
    for (const double seconds : {0.0, -1.0, 1e10}) {
      test::expect_error([&] { explain_waits_after(group, seconds); }, {"seconds is "});
    }
    const Group pair = group.subgroup({0, 1});
    if (group.rank() == 2) {
      test::expect_error([&] { explain_waits(pair); }, {"explain_waits", "not in the group"});
      test::expect_error([&] { explain_waits_after(pair, 1); }, {"not in the group"});
      note_step(pair, 1);
    }
    barrier(group);
  });
}

// Other backends.

void run_over_hanging_backend(const std::string& name,
                              const std::function<void(const Group&, HangingBackend&)>& fn) {
  launch_threads(3, [&](Group group) {
    const auto backend = c10::make_intrusive<HangingBackend>(group.rank(), group.size(), name);
    const Group other = group_over(group, backend);
    fn(other, *backend);
    barrier(group);  // all answer until then
  });
}

/// Over the store: their collectives hang, and are to be seen until all have looked.
void await_all(const Group& group) {
  const auto store = group.process_group()->getStore();
  std::vector<std::string> keys;
  for (int rank = 0; rank < group.size(); ++rank) {
    keys.push_back(c10::str(rank, " has seen it"));
  }
  store->set(keys[group.rank()], "1");
  store->wait(keys, std::chrono::seconds(60));
}

TEST(WaitsOfOtherBackends, ARankThatHasNotStartedIsNamed) {
  run_over_hanging_backend("nccl", [](const Group& group, HangingBackend& backend) {
    const at::Tensor values = at::ones({16});
    all_reduce(group, values, ReduceOp::kSum, "first");
    backend.end_all();
    Work work;
    if (group.rank() != 1) {
      work = all_reduce(group, values, ReduceOp::kSum, "second");
    } else {
      explain_until(
          group,
          {"rank 1 has not started all_reduce #1 of Float[16] 'second': it is in no collective, "
           "and its last was all_reduce #0 of Float[16] 'first'"},
          {{0, "all_reduce #1 of Float[16] 'second'"}, {1, "no collective; last all_reduce #0"}});
    }
    await_all(group);
  });
}

TEST(WaitsOfOtherBackends, RanksOfAnotherModelAreNamed) {
  run_over_hanging_backend("nccl", [](const Group& group, HangingBackend&) {
    const at::Tensor values = at::ones({16});
    const Work work =
        group.rank() == 1 ? broadcast(group, values, 0, "b") : all_reduce(group, values);
    explain_until(group, {"the ranks disagree: ",
                          "ranks 0, 2 called all_reduce #0 of Float[16]; rank 1 called broadcast "
                          "#0 of Float[16] 'b': they run other code"});
    await_all(group);
  });
}

TEST(WaitsOfOtherBackends, TheHostsWaitCountsAndItsErrorIsExplained) {
  run_over_hanging_backend("hanging", [](const Group& group, HangingBackend& backend) {
    if (group.rank() == 0) {
      return;  // and waits for the others elsewhere
    }
    Work work = all_reduce(group, at::ones({16}));
    std::thread other([&] {
      explain_until(group, {"rank 0 has not started all_reduce #0 of Float[16]"});
      backend.fail_all();
    });
    test::expect_error([&] { work.wait(); },
                       {"too late", "What the ranks said meanwhile: rank 0 has not started"});
    other.join();
  });
}

// A link of which one direction is blocked.

/// Gloo's messages, of which those of one rank to another are lost.
class OneWay final : public c10d::Backend {
 public:
  OneWay(c10::intrusive_ptr<c10d::Backend> inner, int from, int to)
      : c10d::Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        loses_(getRank() == from ? to : -1) {}
  const std::string getBackendName() const override { return "gloo"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  WorkPtr send(Tensors& tensors, int receiver, int tag) override {
    if (receiver == loses_) {
      return c10::make_intrusive<HeldWork>(false);
    }
    return inner_->send(tensors, receiver, tag);
  }
  WorkPtr recv(Tensors& tensors, int sender, int tag) override {
    return inner_->recv(tensors, sender, tag);
  }

 private:
  const c10::intrusive_ptr<c10d::Backend> inner_;
  const int loses_;
};

TEST(WaitsOfLinks, ABlockedDirectionIsNamed) {
  launch_threads(3, [](Group group) {
    const Group connected = group.duplicate();
    {
      const auto link = c10::make_intrusive<OneWay>(connected.process_group()->getBackend(at::kCPU),
                                                    /*from=*/0, /*to=*/1);
      const Group blocked = group_over(group, link);
      const Work work = all_reduce(blocked, at::ones({1 << 18}), ReduceOp::kSum, "wide");
      explain_until(
          blocked,
          {"rank 1 hears nothing of rank 0 in all_reduce #0 of Float[262144] (sum) 'wide', "
           "which all ranks have started"},
          {{1, "waits for rank 0 to come"}});
      barrier(group);
    }
    barrier(group);
  });
}

}  // namespace waits_test
}  // namespace fairshard::comm

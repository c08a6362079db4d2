// Ranks as real processes: what they share, how they fail, and that none is left behind.
// The test's own process runs no tensor operation, because launch forks it.
#include "support/expect_error.h"
#include <fairshard/comm.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

namespace fairshard::comm {
namespace launch_test {

/// A pipe through which ranks tell the test something.
class Pipe {
 public:
  Pipe() { EXPECT_EQ(pipe(ends_), 0); }
  ~Pipe() {
    close(ends_[0]);
    close_writer();
  }
  void write(const std::string& text) const {
    EXPECT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void close_writer() { close(std::exchange(ends_[1], -1)); }
  /// Everything up to the end, which comes when all writers are gone.
  std::string read_all() {
    close_writer();
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(ends_[0], buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, n);
    }
    return text;
  }
  std::string read_some(size_t count) const {
    std::string text(count, ' ');
    for (size_t done = 0; done < count;) {
      const ssize_t n = read(ends_[0], text.data() + done, count - done);
      if (n <= 0) {
        break;
      }
      done += n;
    }
    return text;
  }

 private:
  int ends_[2];
};

TEST(Launch, RanksComputeTogether) {
  Pipe pipe;
  launch(3, [&](Group group) {
    at::Tensor tensor = at::full({4}, group.rank() + 1.0);
    all_reduce(group, tensor).wait();
    TORCH_CHECK(tensor[3].item<float>() == 6, "wrong sum");
    const Environment env = read_environment();
    TORCH_CHECK(env.origin == "launch" && env.local_world_size == 3, "wrong environment");
    if (group.rank() == 0) {
      pipe.write("summed");
    }
  });
  EXPECT_EQ(pipe.read_all(), "summed");
}

TEST(Launch, AnExceptionIsReportedWithItsRank) {
  test::expect_error(
      [] {
        launch(3, [](Group group) {
          TORCH_CHECK(group.rank() != 1, "no more of value ", 42);
          barrier(group);
        });
      },
      {"rank 1 of 3", "no more of value 42"});
}

TEST(Launch, AnExitCodeIsReportedWithItsRank) {
  test::expect_error(
      [] {
        launch(2, [](Group group) {
          if (group.rank() == 1) {
            _exit(7);
          }
          barrier(group);
        });
      },
      {"rank 1 of 2", "code 7"});
}

TEST(Launch, AKilledRankIsNoticedByTheOthers) {
  Pipe pipe;
  test::expect_error(
      [&] {
        launch(3, [&](Group group) {
          at::Tensor tensor = at::ones({300000});
          all_reduce(group, tensor).wait();
          if (group.rank() == 2) {
            raise(SIGKILL);
          }
          try {
            all_reduce(group, tensor).wait();
          } catch (const std::exception& error) {
            const std::string text = error.what();
            pipe.write(text.find("has ended") != std::string::npos ? "noticed;" : "not: " + text);
            throw;  // as it is: the launcher knows the errors that follow from another rank's
          }
        });
      },
      {"rank 2 of 3", "signal 9"});
  EXPECT_EQ(pipe.read_all(), "noticed;noticed;");
}

TEST(Launch, AHungRankIsEndedAfterTheGrace) {
  Pipe pipe;
  test::expect_error(
      [&] {
        launch(
            2,
            [&](Group group) {
              if (group.rank() == 0) {
                pause();  // listens to nobody
              }
              TORCH_CHECK(false, "gone");
            },
            LaunchOptions().grace_s(0.1));
      },
      {"rank 1 of 2", "gone"});
  EXPECT_EQ(pipe.read_all(), "");  // ends only when no rank holds the pipe any more
}

TEST(Launch, NoRankOutlivesItsParent) {
  Pipe pipe;
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    const std::string error = test::error_of([&] {
      launch(2, [&](Group group) {
        barrier(group);
        pipe.write("x");
        pause();
      });
    });
    pipe.write(error);
    _exit(0);
  }
  EXPECT_EQ(pipe.read_some(2), "xx");
  kill(parent, SIGKILL);
  EXPECT_EQ(waitpid(parent, nullptr, 0), parent);
  EXPECT_EQ(pipe.read_all(), "");  // as above
}

/// Lines of /proc/net/tcp of sockets that listen, without those of the loopback interface.
int listening_to_the_network() {
  int count = 0;
  for (const char* file : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream table(file);
    std::string line;
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string slot, local, remote, state;
      fields >> slot >> local >> remote >> state;
      count += state == "0A" && local.rfind("0100007F", 0) != 0;
    }
  }
  return count;
}

TEST(Launch, ASigtermIsPassedOnToAllRanks) {
  launch(3, [](Group group) {
    signal(SIGTERM, [](int) { _exit(0); });
    barrier(group);  // all are ready for it
    if (group.rank() == 1) {
      kill(getppid(), SIGTERM);
    }
    poll(nullptr, 0, 20000);
    TORCH_CHECK(false, "no signal has come");
  });
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  EXPECT_EQ(sigismember(&blocked, SIGTERM), 0);
}

TEST(Launch, OpensNoPortToTheNetwork) {
  const int before = listening_to_the_network();
  Pipe pipe;
  launch(2, [&](Group group) {
    barrier(group);
    if (group.rank() == 0) {
      pipe.write(std::to_string(listening_to_the_network()));
    }
    barrier(group);
  });
  EXPECT_EQ(pipe.read_all(), std::to_string(before));
}

TEST(Launch, OmpNumThreadsCounts) {
  const char* const before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before ? before : "";
  setenv("OMP_NUM_THREADS", "3", 1);
  launch(2, [](Group) { TORCH_CHECK(at::get_num_threads() == 3, "not three threads"); });
  launch(
      2, [](Group) { TORCH_CHECK(at::get_num_threads() == 2, "not two threads"); },
      LaunchOptions().threads(2));
  before ? setenv("OMP_NUM_THREADS", kept.c_str(), 1) : unsetenv("OMP_NUM_THREADS");
}

TEST(Launch, ARankKnowsItsNumberOnTheMachine) {
  launch(2, [](Group group) {
    const Group alone = group.subgroup({1});
    TORCH_CHECK(group.local_rank() == group.rank() && alone.local_rank() == group.rank(),
                "local rank ", group.local_rank(), " and ", alone.local_rank());
  });
  Environment env;
  env.local_rank = 3;  // of a machine whose other ranks are not in this group
  EXPECT_EQ(init_process_group(env).local_rank(), 3);
}

TEST(Launch, BadInputIsNamed) {
  test::expect_error([] { launch(0, [](Group) {}); }, {"ranks is 0"});
}

// Last, because the process has had a thread from here on.
TEST(LaunchLast, AProcessWithThreadsIsRefused) {
  Pipe pipe;
  std::thread one([&] { pipe.read_some(1); });
  std::thread another([&] { pipe.read_some(1); });
  test::expect_error([] { launch(1, [](Group) {}); }, {"threads", "before"});
  pipe.write("xx");
  one.join();
  another.join();
}

TEST(LaunchLast, AThreadThatThrowsAnythingIsReported) {
  test::expect_error(
      [] {
        launch_threads(2, [](Group group) {
          if (group.rank() == 1) {
            throw 42;
          }
        });
      },
      {"rank 1 of 2"});
}

}  // namespace launch_test
}  // namespace fairshard::comm

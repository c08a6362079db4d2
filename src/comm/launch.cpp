#include "group_state.h"
#include "wait_note.h"
#include "wait_signal.h"
#include <fairshard/comm/init.h>
#include <fairshard/comm/launch.h>
#include <fairshard/comm/reason.h>
#include <fairshard/comm/seconds.h>
#include <fairshard/comm/temporary_folder.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <optional>
#include <thread>
#include <vector>

namespace fairshard::comm {
namespace {

using Clock = std::chrono::steady_clock;

// How a report begins: a rank whose collective failed is rarely the one that was first in trouble.
constexpr char kCause = '!';
constexpr char kConsequence = '>';

struct Failure {
  int rank;
  std::string text;
  bool is_consequence;
  int signal = 0;
};

/// While it lives, SIGTERM, SIGINT and the signal that asks what ranks wait for are nothing to this
/// process: they can be read from a file descriptor.
class HeldSignals {
 public:
  struct Signal {
    int number;
    /// Whether a terminal has sent it, and so to the ranks as well.
    bool is_from_terminal;
  };

  HeldSignals() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (wait_signal() != 0) {
      sigaddset(&signals, wait_signal());
    }
    sigprocmask(SIG_BLOCK, &signals, &before_);
    event_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
  }
  ~HeldSignals() {
    while (take()) {  // one that came too late would end the process now
    }
    close(event_);
    release();
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  int event() const { return event_; }
  /// One that has come since the last call, if there is one.
  std::optional<Signal> take() const {
    signalfd_siginfo info;
    if (read(event_, &info, sizeof(info)) <= 0) {
      return std::nullopt;
    }
    return Signal{static_cast<int>(info.ssi_signo), info.ssi_code == SI_KERNEL};
  }
  /// For a child, to which they are signals as any other.
  void release() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
  int event_ = -1;
};

// ThreadSanitizer may or may not have started a thread of its own.
#ifdef __SANITIZE_THREAD__
constexpr int kMostThreads = 2;
#else
constexpr int kMostThreads = 1;
#endif

int count_threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<int>(std::distance(begin(tasks), end(tasks)));
}

/// The child's side: becomes rank `rank`, runs `fn`, and never returns.
[[noreturn]] void run_child(int rank, int ranks, const std::string& store_file, int report,
                            pid_t parent, const RankFunction& fn, const LaunchOptions& options) {
  int code = 0;
  std::optional<Group> group;  // outlives the report: peers notice a failure when it closes
  try {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(1);  // the parent died before the line above
    }
    setenv("RANK", std::to_string(rank).c_str(), 1);
    setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
    setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
    setenv("LOCAL_WORLD_SIZE", std::to_string(ranks).c_str(), 1);
    setenv("FAIRSHARD_STORE_FILE", store_file.c_str(), 1);
    at::set_num_threads(threads_per_rank(options.threads(), ranks));
    group = init_process_group(
        GroupOptions().timeout_s(options.timeout_s()).backend(options.backend()));
    fn(*group);
    flush(*group);
  } catch (const std::exception& error) {
    // A pipe takes this much at once whether or not anybody reads.
    const bool is_consequence = dynamic_cast<const c10::DistBackendError*>(&error) != nullptr;
    const std::string text =
        (is_consequence ? kConsequence : kCause) + reason_of(error).substr(0, 4000);
    code = write(report, text.data(), text.size()) >= 0 ? 1 : 2;
  } catch (...) {
    code = 1;
  }
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
  // Without static destructors: they belong to the parent, and LibTorch's may wait for threads.
  _exit(code);
}

/// The parent's view of a rank.
class Child {
 public:
  Child(int rank, pid_t pid, int report)
      : rank_(rank),
        pid_(pid),
        report_(report),
        exit_event_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}

  bool has_ended() const { return has_ended_; }
  bool is_stopped() const {
    const Whereabouts own = Whereabouts::own();
    return state_of_process({own.host, pid_, own.machine}, own) == ProcessState::kStopped;
  }
  int exit_event() const { return exit_event_; }
  void kill(int signal) const {
    if (!has_ended_) {
      ::kill(pid_, signal);
    }
  }

  /// Reaps the ended process. Returns what went wrong, if anything did.
  std::optional<Failure> reap() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    has_ended_ = true;
    close(exit_event_);
    const std::string report = read_report();
    close(report_);
    if (WIFSIGNALED(status)) {
      const int signal = WTERMSIG(status);
      return Failure{rank_, c10::str("ended by signal ", signal, " (", strsignal(signal), ")"),
                     false, signal};
    }
    if (!report.empty()) {
      return Failure{rank_, report.substr(1), report.front() == kConsequence};
    }
    if (WEXITSTATUS(status) != 0) {
      return Failure{rank_, c10::str("exited with code ", WEXITSTATUS(status)), false};
    }
    return std::nullopt;
  }

 private:
  std::string read_report() const {
    std::string text(4096, '\0');
    const ssize_t length = read(report_, text.data(), text.size());
    text.resize(static_cast<size_t>(std::max<ssize_t>(length, 0)));
    return text;
  }

  int rank_;
  pid_t pid_;
  int report_;
  int exit_event_;
  bool has_ended_ = false;
};

/// All ranks of one launch. Whatever happens, none of them outlives it.
class Children {
 public:
  Children() = default;
  ~Children() { end_all(SIGKILL); }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  void add(const Child& child) { children_.push_back(child); }
  const HeldSignals& signals() const { return signals_; }

  /// Blocks until a rank has ended or the time is over; returns the one that ended. Meanwhile
  /// signals are passed on to all.
  Child* wait_for_one(int timeout_ms) {
    std::vector<pollfd> events;
    std::vector<Child*> running;
    for (auto& child : children_) {
      if (!child.has_ended()) {
        events.push_back({child.exit_event(), POLLIN, 0});
        running.push_back(&child);
      }
    }
    if (running.empty()) {
      return nullptr;
    }
    events.push_back({signals_.event(), POLLIN, 0});
    const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
    while (true) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      const int wait_ms =
          timeout_ms < 0 ? -1 : static_cast<int>(std::max<int64_t>(left.count(), 0));
      while (poll(events.data(), events.size(), wait_ms) < 0 && errno == EINTR) {
      }
      const bool has_passed_on = pass_on_signal();
      for (size_t i = 0; i < running.size(); ++i) {
        if (events[i].revents != 0) {
          return running[i];
        }
      }
      if (!has_passed_on || wait_ms == 0) {
        return nullptr;
      }
    }
  }

  void end_all(int signal) {
    for (const auto& child : children_) {
      child.kill(signal);
    }
    for (auto& child : children_) {
      if (!child.has_ended()) {
        child.reap();
      }
    }
  }

  /// Lets the others notice a failure and end by themselves, then ends them. Returns the failure
  /// that is to blame, which is the given one if the others' only followed from it.
  Failure end_after(Failure first, std::chrono::milliseconds grace) {
    const auto until = Clock::now() + grace;
    while (true) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
      Child* ended = left.count() > 0 ? wait_for_one(static_cast<int>(left.count())) : nullptr;
      if (!ended) {
        break;
      }
      const auto failure = ended->reap();
      if (first.is_consequence && failure && !failure->is_consequence) {
        first = *failure;
      }
    }
    end_all(SIGKILL);
    return first;
  }

 private:
  /// Returns whether there was one.
  bool pass_on_signal() const {
    const auto signal = signals_.take();
    if (signal && signal->number == wait_signal()) {
      ask_one(signal->number);
    } else if (signal && !signal->is_from_terminal) {
      for (const auto& child : children_) {
        child.kill(signal->number);
      }
    }
    return signal.has_value();
  }

  /// One table says what all ranks wait for. A rank that is stopped would write none.
  void ask_one(int signal) const {
    const auto found = std::find_if(children_.begin(), children_.end(), [](const Child& child) {
      return !child.has_ended() && !child.is_stopped();
    });
    if (found != children_.end()) {
      found->kill(signal);
    }
  }

  HeldSignals signals_;
  std::vector<Child> children_;
};

}  // namespace

int threads_per_rank(int wanted, int local_ranks) {
  if (wanted > 0) {
    return wanted;
  }
  // What a user has set counts, as it does for torch itself.
  const char* const set = std::getenv("OMP_NUM_THREADS");
  const int threads = set ? std::atoi(set) : 0;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return threads > 0 ? threads : std::max(1, cores / local_ranks);
}

void launch(int ranks, const RankFunction& fn, const LaunchOptions& options) {
  TORCH_CHECK_VALUE(ranks >= 1, "launch: the number of ranks is ", ranks,
                    ", but must be at least 1");
  to_timeout(options.timeout_s());  // one message, and not one by each rank
  const auto grace = to_pause(options.grace_s(), "grace_s");
  TORCH_CHECK_VALUE(options.threads() >= 0, "launch: threads is ", options.threads(),
                    ", but must be at least 0");
  const int threads = count_threads();
  TORCH_CHECK(threads <= kMostThreads, "launch: this process already has ", threads,
              " threads, which forked ranks would lack. Call launch before the first large tensor "
              "operation, before CUDA is used, and before threads are started");
  const TemporaryFolder folder;
  const pid_t parent = getpid();
  std::cout.flush();
  std::fflush(nullptr);

  Children children;
  for (int rank = 0; rank < ranks; ++rank) {
    int report[2];
    TORCH_CHECK(pipe2(report, O_CLOEXEC) == 0, "launch: no pipe: ", std::strerror(errno));
    const pid_t pid = fork();
    TORCH_CHECK(pid >= 0, "launch: rank ", rank, " could not be started: ", std::strerror(errno));
    if (pid == 0) {
      children.signals().release();
      run_child(rank, ranks, folder.file("store"), report[1], parent, fn, options);
    }
    close(report[1]);
    children.add(Child(rank, pid, report[0]));
  }

  while (Child* ended = children.wait_for_one(-1)) {
    if (const auto failure = ended->reap()) {
      const Failure blamed = children.end_after(*failure, grace);
      throw LaunchError(blamed.rank, ranks, blamed.text, blamed.signal);
    }
  }
}

}  // namespace fairshard::comm

#include "termination.h"

#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <new>

namespace fairshard::cli::training {
namespace {

/// What a handler can reach: it has no object. All of it is lock-free.
struct Heard {
  std::atomic<bool> is_stepping = false;
  std::atomic<bool> speaks = false;
  std::atomic<int> signal = 0;
  std::atomic<int64_t> at_ns = 0;
  /// The process that was not forked by us, and speaks for itself.
  pid_t first_process = 0;
  /// Paths, ended by zeros.
  char file[PATH_MAX] = {};
  char folder[PATH_MAX] = {};
  /// Shared with forked ranks.
  std::atomic<bool>* has_begun = nullptr;
};

Heard heard;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

constexpr int64_t kSecond_ns = 1'000'000'000;

/// All that a handler may call.
void say(const char* const* parts, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    (void)!write(STDERR_FILENO, parts[i], std::strlen(parts[i]));
  }
}

void end_at_once(int signal) {
  if (heard.file[0] != '\0') {
    unlink(heard.file);
    rmdir(heard.folder);
  }
  if (getpid() == heard.first_process) {
    const bool has_begun = *heard.has_begun;
    const char* const parts[] = {"fairshard: ended by ", has_begun ? "a second " : "",
                                 name_of_signal(signal),
                                 has_begun ? "; steps since the last checkpoint are lost\n"
                                           : " before the first step; nothing was saved\n"};
    say(parts, std::size(parts));
    _exit(128 + signal);
  }
  // A rank that launch() has forked: the program sees how it ended, and speaks.
  std::signal(signal, SIG_DFL);
  raise(signal);  // when this handler returns
}

void on_signal(int signal) {
  const int error = errno;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ns = now.tv_sec * kSecond_ns + now.tv_nsec;
  int none = 0;
  if (!heard.is_stepping) {
    end_at_once(signal);
  } else if (heard.signal.compare_exchange_strong(none, signal)) {
    heard.at_ns = now_ns;
    if (heard.speaks) {
      const char* const parts[] = {"\nfairshard: ", name_of_signal(signal),
                                   ": ends after this step; a second one ends at once\n"};
      say(parts, std::size(parts));
    }
  } else if (now_ns - heard.at_ns >= kSecond_ns) {
    // Launchers send several at once: torchrun a SIGTERM after each Ctrl-C.
    end_at_once(signal);
  }
  errno = error;
}

void copy_path(const std::string& path, char (&into)[PATH_MAX]) {
  TORCH_CHECK(path.size() < PATH_MAX, "the path ", path, " is too long");
  std::memcpy(into, path.c_str(), path.size() + 1);
}

}  // namespace

const char* name_of_signal(int signal) { return signal == SIGINT ? "SIGINT" : "SIGTERM"; }

Termination::Termination() {
  void* const shared = mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(shared != MAP_FAILED, "no memory to share with ranks: ", std::strerror(errno));
  heard.has_begun = new (shared) std::atomic<bool>(false);
  heard.first_process = getpid();
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &term_);
  sigaction(SIGINT, &action, &interrupt_);
}

Termination::~Termination() {
  sigaction(SIGTERM, &term_, nullptr);
  sigaction(SIGINT, &interrupt_, nullptr);
  munmap(heard.has_begun, sizeof(std::atomic<bool>));
}

void Termination::remove_at_end(const std::string& file) {
  copy_path(file.substr(0, file.find_last_of('/')), heard.folder);
  copy_path(file, heard.file);
}

void Termination::begin_steps(bool speaks) {
  heard.speaks = speaks;
  heard.is_stepping = true;
  *heard.has_begun = true;
}

bool Termination::have_steps_begun() const { return *heard.has_begun; }

int Termination::signal() const { return heard.signal; }

}  // namespace fairshard::cli::training

#include "folder_lock.h"

#include "files.h"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

namespace fairshard::store {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kName = ".lock";
constexpr int64_t kMaxHolderBytes = 4096;
/// A run that was killed, or its ranks, may need a moment to be gone.
constexpr auto kPatience = std::chrono::seconds(2);
constexpr auto kPause = std::chrono::milliseconds(20);

/// Of the whole file. Not inherited by forked workers, unlike flock()'s, and known to network file
/// systems.
bool try_lock(int file) {
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  return fcntl(file, F_SETLK, &whole) == 0;
}

/// Whether a file is still the one of that name: who had the lock before has removed it.
bool is_named(int file, const std::string& path) {
  struct stat opened {};
  struct stat named {};
  return fstat(file, &opened) == 0 && lstat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

void write_holder(int file) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const std::string text = c10::str("process ", getpid(), " on ", host.data());
  // Only for messages.
  if (ftruncate(file, 0) == 0) {
    (void)!write(file, text.data(), text.size());
  }
}

std::string holder_of(const std::string& path) {
  try {
    const std::string text = read_file(path, kMaxHolderBytes);
    return text.empty() ? "somebody" : text;
  } catch (const c10::Error&) {
    return "somebody";
  }
}

}  // namespace

FolderLock::FolderLock(std::string path) : path_(std::move(path)), owner_(getpid()) {
  const auto deadline = Clock::now() + kPatience;
  while (true) {
    file_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    TORCH_CHECK(file_ >= 0, "cannot make ", path_, ": ", std::strerror(errno));
    const bool is_locked = try_lock(file_);
    const int error = errno;
    if (is_locked && is_named(file_, path_)) {
      write_holder(file_);
      return;
    }
    const bool is_held = !is_locked && (error == EAGAIN || error == EACCES);
    if (!is_locked && !is_held) {
      TORCH_WARN(path_, " cannot be locked (", std::strerror(error),
                 "): see to it that no other run saves there");
      return;
    }
    close(std::exchange(file_, -1));
    if (is_held) {
      TORCH_CHECK(Clock::now() < deadline, path_.substr(0, path_.size() - std::strlen(kName) - 1),
                  ": another run saves there (", holder_of(path_),
                  "): end it, or choose another folder");
      std::this_thread::sleep_for(kPause);
    }
  }
}

FolderLock::~FolderLock() {
  if (file_ >= 0 && owner_ == getpid()) {
    unlink(path_.c_str());
  }
  close(file_);
}

std::shared_ptr<FolderLock> lock_folder(const std::string& folder) {
  using Identity = std::pair<dev_t, ino_t>;
  // Locks are a process's: a second one would be granted, and its end would let go of the first.
  static std::mutex mutex;
  static std::map<std::pair<pid_t, Identity>, std::weak_ptr<FolderLock>> held;
  struct stat info {};
  TORCH_CHECK(stat(folder.c_str(), &info) == 0, "cannot look at ", folder, ": ",
              std::strerror(errno));
  const std::lock_guard guard(mutex);
  std::erase_if(held, [](const auto& item) { return item.second.expired(); });
  auto& known = held[{getpid(), {info.st_dev, info.st_ino}}];
  auto lock = known.lock();
  if (!lock) {
    lock = std::make_shared<FolderLock>(folder + "/" + kName);
    known = lock;
  }
  return lock;
}

}  // namespace fairshard::store

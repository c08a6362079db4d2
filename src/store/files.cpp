#include "files.h"

#include <c10/util/Exception.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace fairshard::store {
namespace {

/// So much is left to the page cache before the disk is told to begin; the final fsync is then
/// short.
constexpr int64_t kFlushBytes = 32 << 20;

bool is_link(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
}

[[noreturn]] void fail(const char* verb, const std::string& path, int error) {
  TORCH_CHECK(false, "cannot ", verb, " ", path, ": ", std::strerror(error));
}

void require(bool is_done, const char* verb, const std::string& path) {
  if (!is_done) {
    fail(verb, path, errno);
  }
}

/// A file descriptor that is closed when it is let go.
class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, const char* verb)
      : number_(open(path.c_str(), flags | O_CLOEXEC)) {
    require(number_ >= 0, verb, path);
  }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)),
      file_(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
  require(file_ >= 0, "make", path_);
}

OutputFile::~OutputFile() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

void OutputFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    require(count > 0, "write", path_);
    bytes.remove_prefix(static_cast<size_t>(count));
    written_ += count;
  }
  if (written_ - flushed_ >= kFlushBytes) {
    // Only a hint: a file system that does not know it still gets its fsync.
    (void)sync_file_range(file_, flushed_, written_ - flushed_, SYNC_FILE_RANGE_WRITE);
    flushed_ = written_;
  }
}

void OutputFile::finish() {
  require(fsync(file_) == 0, "write", path_);
  require(::close(std::exchange(file_, -1)) == 0, "write", path_);
}

std::string read_file(const std::string& path, int64_t max_bytes) {
  // Without O_NONBLOCK, opening a FIFO waits for somebody to write to it.
  const Descriptor file(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK, "read");
  struct stat info {};
  require(fstat(file.number(), &info) == 0, "read", path);
  TORCH_CHECK(S_ISREG(info.st_mode), path, ": it is no regular file");
  TORCH_CHECK(info.st_size <= max_bytes, "cannot read ", path, ": it has ", info.st_size,
              " bytes, and no more than ", max_bytes, " are allowed");
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t count = read(file.number(), text.data() + filled, text.size() - filled);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    require(count >= 0, "read", path);
    TORCH_CHECK(count > 0, "cannot read ", path, ": it became shorter");
    filled += static_cast<size_t>(count);
  }
  return text;
}

int64_t file_length(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) ? info.st_size : -1;
}

bool is_there(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0;
}

bool is_directory(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

void make_directory(const std::string& path) {
  require(mkdir(path.c_str(), 0777) == 0, "make", path);
}

void make_directories(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), 0777) == 0) {
      const size_t above = part.find_last_of('/');
      sync_directory(above == std::string::npos ? "." : part.substr(0, above + 1));
    } else if (const int error = errno; !is_directory(part)) {
      fail("make", part, error);
    }
    if (end == std::string::npos) {
      return;
    }
  }
}

std::vector<std::string> list_directory(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(opendir(path.c_str()), closedir);
  if (!directory && errno == ENOENT) {
    return {};
  }
  require(directory != nullptr, "list", path);
  std::vector<std::string> names;
  while (const dirent* const entry = readdir(directory.get())) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") {
      names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

void sync_directory(const std::string& path) {
  const Descriptor directory(path, O_RDONLY | O_DIRECTORY, "open");
  require(fsync(directory.number()) == 0, "sync", path);
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the folder
void remove_directory(const std::string& path) {
  if (is_link(path)) {
    require(unlink(path.c_str()) == 0 || errno == ENOENT, "remove", path);
    return;
  }
  for (const auto& name : list_directory(path)) {
    const std::string inner = c10::str(path, "/", name);
    struct stat info {};
    if (lstat(inner.c_str(), &info) != 0) {
      continue;  // somebody else was faster
    }
    if (S_ISDIR(info.st_mode)) {
      remove_directory(inner);
    } else {
      require(unlink(inner.c_str()) == 0 || errno == ENOENT, "remove", inner);
    }
  }
  require(rmdir(path.c_str()) == 0 || errno == ENOENT, "remove", path);
}

void rename_directory(const std::string& from, const std::string& to) {
  // Never over an empty folder either, which rename() alone would replace.
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) {
    return;
  }
  const bool is_there = errno == EEXIST || errno == ENOTEMPTY;
  if (is_there) {
    require(renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0,
            "exchange with the older checkpoint", to);
    return;
  }
  // Some network file systems know only the plain call, which replaces nothing but empty folders.
  require(errno == EINVAL && rename(from.c_str(), to.c_str()) == 0, "rename to", to);
}

}  // namespace fairshard::store

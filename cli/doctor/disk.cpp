#include "disk.h"

#include "within.h"

#include <c10/util/StringUtil.h>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <vector>

namespace fairshard::cli::doctor {
namespace {

namespace fs = std::filesystem;
using DiskClock = std::chrono::steady_clock;

constexpr int64_t kMostWritten = int64_t{64} << 20;
constexpr size_t kBlock = size_t{1} << 20;

/// The folder, or the nearest above it that is there.
fs::path existing(const fs::path& folder) {
  fs::path path = fs::absolute(folder);
  std::error_code ignored;
  while (!fs::exists(path, ignored) && path.has_relative_path()) {
    path = path.parent_path();
  }
  return path;
}

/// A new file without a name; below 0 if there is none.
int open_nameless(const fs::path& folder) {
  const int file = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT)) {
    return file;
  }
  std::string name = folder / ".fairshard-doctor-XXXXXX";
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) {
    unlink(name.c_str());
  }
  return named;
}

/// Of which no disk makes less.
std::vector<uint32_t> noise() {
  std::vector<uint32_t> words(kBlock / sizeof(uint32_t));
  std::mt19937 random(1);
  for (auto& word : words) {
    word = random();
  }
  return words;
}

void measure_writing(const fs::path& folder, double seconds, Disk& disk) {
  const int file = open_nameless(folder);
  if (file < 0) {
    disk.fault = c10::str("no file can be made there: ", std::strerror(errno));
    return;
  }
  const auto block = noise();
  const auto begin = DiskClock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(DiskClock::now() - begin).count();
  };
  bool is_good = true;
  while (is_good && disk.written < kMostWritten && passed() < seconds) {
    const ssize_t length = write(file, block.data(), kBlock);
    is_good = length > 0 || (length < 0 && errno == EINTR);
    disk.written += length > 0 ? length : 0;
  }
  if (!is_good || fsync(file) != 0) {
    disk.fault = c10::str("writing ended after ", disk.written, " bytes: ", std::strerror(errno));
  } else {
    disk.bytes_per_s = static_cast<double>(disk.written) / passed();
  }
  close(file);
}

Disk look_at(const std::string& folder, bool writes, double write_s) {
  Disk disk;
  disk.folder = folder;
  const fs::path path = existing(folder);
  struct statvfs space {};
  struct statfs kind {};
  if (statvfs(path.c_str(), &space) != 0 || statfs(path.c_str(), &kind) != 0) {
    disk.fault = std::strerror(errno);
    return disk;
  }
  disk.free = static_cast<int64_t>(space.f_bavail) * static_cast<int64_t>(space.f_frsize);
  disk.is_in_memory = kind.f_type == TMPFS_MAGIC || kind.f_type == RAMFS_MAGIC;
  if (!fs::is_directory(path)) {
    disk.fault = path.native() + " is no folder";
  } else if (writes && disk.free < 2 * kMostWritten) {
    disk.fault = "too little is free to measure how quickly it writes";
  } else if (writes) {
    measure_writing(path, write_s, disk);
  }
  return disk;
}

}  // namespace

Disk examine_disk(const std::string& folder, bool writes, double limit_s) {
  // Half of the time for the writes: what they have left in memory comes with the last call.
  const auto look = [=] { return look_at(folder, writes, limit_s / 2); };
  if (const auto disk = within(limit_s, look)) {
    return *disk;
  }
  Disk disk;
  disk.folder = folder;
  disk.fault = c10::str("no answer within ", limit_s, " s");
  return disk;
}

}  // namespace fairshard::cli::doctor

#include "files.h"
#include <fairshard/store/pending_file.h>

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace fairshard::store {
namespace {

/// Where links lead to; the path itself if there is nothing yet.
std::string resolved(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> real(realpath(path.c_str(), nullptr), std::free);
  return real ? real.get() : path;
}

std::string temporary_name(const std::string& path) {
  const size_t name = path.find_last_of('/') + 1;
  return c10::str(path.substr(0, name), ".", path.substr(name), ".tmp-", getpid());
}

}  // namespace

PendingFile::PendingFile(const std::string& path, Existing existing)
    : path_(existing == Existing::kReplace ? resolved(path) : path),
      temporary_(temporary_name(path_)),
      existing_(existing) {
  TORCH_CHECK(!is_directory(path), "cannot write ", path, ": it is a folder");
  TORCH_CHECK(existing == Existing::kReplace || !is_there(path), "cannot make ", path, ": ",
              std::strerror(EEXIST));
  TORCH_CHECK(!is_there(path_) || file_length(path_) >= 0, "cannot replace ", path,
              ": it is no regular file");
  unlink(temporary_.c_str());  // of a process that had this number before, and was killed
}

PendingFile::~PendingFile() { unlink(temporary_.c_str()); }

void PendingFile::publish() {
  const bool keeps = existing_ == Existing::kKeep;
  int result = renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(),
                         keeps ? RENAME_NOREPLACE : 0);
  if (result != 0 && errno == EINVAL && !is_there(path_)) {
    result = rename(temporary_.c_str(), path_.c_str());  // some network file systems know only this
  }
  TORCH_CHECK(result == 0, "cannot make ", path_, ": ", std::strerror(errno));
}

}  // namespace fairshard::store

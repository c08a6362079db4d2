#pragma once
// Inputs that end: a FIFO without a writer or /dev/zero would be read for ever.

#include <c10/util/Exception.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace fairshard::cli {

/// Throws, with the path, if it is not a file with an end. Links are followed.
inline void require_plain_file(const std::string& path) {
  struct stat info {};
  TORCH_CHECK_VALUE(stat(path.c_str(), &info) == 0, path,
                    ": cannot be opened: ", std::strerror(errno));
  TORCH_CHECK_VALUE(S_ISREG(info.st_mode), path, ": it is no regular file");
}

}  // namespace fairshard::cli

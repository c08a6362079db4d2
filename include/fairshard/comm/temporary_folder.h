#pragma once
// A private folder for files that processes share for a while.

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>

namespace fairshard::comm {

/// TMPDIR, or /tmp. Throws, with its name, if it is no folder.
inline std::string temporary_directory() {
  const char* const given = std::getenv("TMPDIR");
  const bool is_given = given && *given;
  std::string path = is_given ? given : "/tmp";
  std::error_code ignored;
  TORCH_CHECK(std::filesystem::is_directory(path, ignored),
              is_given ? "the environment variable TMPDIR is " : "", path,
              ", which is no folder: temporary files go there");
  return path;
}

/// A new folder that only this user can read, removed with everything in it. Local.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = temporary_directory() + "/fairshard-XXXXXX";
    TORCH_CHECK(mkdtemp(name.data()) != nullptr, "cannot make a folder like ", name, ": ",
                std::strerror(errno));
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  /// The path of a file in it, which need not be there.
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace fairshard::comm

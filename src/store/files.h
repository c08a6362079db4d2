#pragma once
// Files and folders, with errors that name the path. POSIX calls, because torch's wheels export
// parts of an old std::filesystem.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fairshard::store {

/// A file that is written from start to end. It must not be there yet.
class OutputFile {
 public:
  explicit OutputFile(std::string path);
  /// Closes it, finished or not.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view bytes);
  /// Returns when everything is on the disk.
  void finish();

 private:
  std::string path_;
  int file_ = -1;
  int64_t written_ = 0;
  int64_t flushed_ = 0;
};

/// The whole of a file of at most `max_bytes`. Neither follows a link nor waits for a FIFO.
std::string read_file(const std::string& path, int64_t max_bytes);
/// The length of a regular file, or -1 if there is none.
int64_t file_length(const std::string& path);
/// Whether there is anything of this name, be it a link that leads nowhere.
bool is_there(const std::string& path);
bool is_directory(const std::string& path);
/// With all that are missing above it. Says nothing if it is there.
void make_directories(const std::string& path);
/// Throws if it is there.
void make_directory(const std::string& path);
/// Names of what is in it, sorted; nothing if it is not there.
std::vector<std::string> list_directory(const std::string& path);
/// Flushes names that were added or changed to disk.
void sync_directory(const std::string& path);
/// With everything in it; links, be it to the folder itself, are removed, not followed. Says
/// nothing if it is not there.
void remove_directory(const std::string& path);
/// Gives a folder another name. One that has it already is exchanged with it, in one step.
void rename_directory(const std::string& from, const std::string& to);

}  // namespace fairshard::store

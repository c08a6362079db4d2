#pragma once
// A store in a file whose name is only needed until all ranks have opened it.

#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include <memory>
#include <string>

namespace fairshard::comm {

/// A file that stays open. c10d::FileStore opens its file by name for every operation; by the name
/// that the system gives to an open file, it does so even after the file was removed.
class OpenFile {
 public:
  /// Makes it if it is not there. Throws c10::DistStoreError.
  explicit OpenFile(const std::string& path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  std::string name() const;

 private:
  int number_;
};

/// The first base of a MeetingFile, which outlives the second: FileStore's end opens the file, too.
struct KeptOpen {
  std::shared_ptr<OpenFile> file;
};

/// A store in a file that nobody can find once remove_name() was called. So nobody meets a stale
/// one, and nothing is left behind, however the ranks end.
class MeetingFile : private KeptOpen, public c10d::FileStore {
 public:
  MeetingFile(const std::string& path, int ranks);
  MeetingFile(const std::shared_ptr<OpenFile>& opened, int ranks);
  c10::intrusive_ptr<c10d::Store> clone() override;

 private:
  int ranks_;
};

/// Removes the file, and its folder if that is empty then. To be called by one rank when all have
/// opened it.
void remove_name(const std::string& path);

}  // namespace fairshard::comm

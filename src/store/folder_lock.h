#pragma once
// One run at a time writes to a folder.

#include <memory>
#include <string>

namespace fairshard::store {

/// While it lives, no other process has one for the same folder. The system lets go of it when the
/// process ends, however it ends.
class FolderLock {
 public:
  explicit FolderLock(std::string path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  std::string path_;
  int file_ = -1;
  /// A forked child has a copy of this, but not the lock.
  int owner_;
};

/// Locks a folder for this process, in which all who ask share one lock. A run that has just ended
/// is waited for; throws, with who has it, if another process keeps it. Where the file system has
/// no locks, warns and does without.
std::shared_ptr<FolderLock> lock_folder(const std::string& folder);

}  // namespace fairshard::store

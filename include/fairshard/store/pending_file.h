#pragma once
// A file that is there as a whole, or not at all.

#include <string>

namespace fairshard::store {

/// Something is written to a temporary name in the same folder and gets its own name when it is
/// complete. If it is not published, the temporary file is removed. Local.
class PendingFile {
 public:
  /// Whether a file that has the name already is kept, with an error, or replaced.
  enum class Existing { kKeep, kReplace };

  /// Throws if the name is taken and must not be replaced, or is that of no regular file. A link is
  /// followed, so that what it leads to is replaced.
  PendingFile(const std::string& path, Existing existing);
  ~PendingFile();
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  /// Where to write.
  const std::string& temporary_path() const { return temporary_; }
  /// Gives it its name.
  void publish();

 private:
  std::string path_;
  std::string temporary_;
  Existing existing_;
};

}  // namespace fairshard::store

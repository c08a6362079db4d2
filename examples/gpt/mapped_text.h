#pragma once
// Files as one long text that is mapped into memory and never read whole.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace gpt {

/// A file, or all source and text files under a folder in the order of their paths, without
/// following links and without installed Python packages. Files must stay as they are meanwhile.
/// May be used by several threads.
class MappedText {
 public:
  /// Only looks at sizes. Throws c10::Error that names the path if it is missing or unreadable.
  explicit MappedText(const std::filesystem::path& path);
  ~MappedText();
  MappedText(const MappedText&) = delete;
  MappedText& operator=(const MappedText&) = delete;

  int64_t size() const;

  /// Copies `count` bytes from `begin` on, which must be there.
  void copy(int64_t begin, int64_t count, unsigned char* target) const;

 private:
  class Mappings;
  struct File {
    std::filesystem::path path;
    int64_t begin;
    int64_t end;
  };

  std::vector<File> files_;
  std::unique_ptr<Mappings> mappings_;
};

}  // namespace gpt

#include "gpt/mapped_text.h"

#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>

namespace gpt {
namespace {

namespace fs = std::filesystem;

/// A process has 65530 mappings by default, and a folder may have more files.
constexpr size_t kMostMappings = 4096;

bool is_text(const fs::path& file) {
  constexpr std::array<std::string_view, 7> kEndings = {".py", ".txt", ".md", ".rst",
                                                        ".h",  ".cpp", ".c"};
  return std::ranges::find(kEndings, file.extension().native()) != kEndings.end();
}

/// Packages come and go, and would change the text under a Python's library folder.
bool is_skipped_folder(const fs::path& folder) {
  const std::string name = folder.filename();
  return name == "site-packages" || name == "dist-packages" || name == "__pycache__";
}

std::vector<fs::path> find_texts(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  const fs::recursive_directory_iterator end;
  while (!error && entry != end) {
    if (!entry->is_symlink()) {
      if (entry->is_directory() && is_skipped_folder(entry->path())) {
        entry.disable_recursion_pending();
      } else if (entry->is_regular_file() && is_text(entry->path())) {
        files.push_back(entry->path());
      }
    }
    entry.increment(error);
  }
  TORCH_CHECK(!error, "the folder ", folder.native(), " cannot be read: ", error.message());
  // A folder's own order differs between machines.
  std::ranges::sort(files);
  return files;
}

std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  TORCH_CHECK(fs::exists(status), "there is no file or folder ", path.native());
  TORCH_CHECK(fs::is_regular_file(status) || fs::is_directory(status), path.native(),
              " is neither a file nor a folder");
  return fs::is_regular_file(status) ? std::vector{path} : find_texts(path);
}

}  // namespace

/// One file in memory.
class Mapping {
 public:
  Mapping(const fs::path& path, int64_t bytes) : bytes_(bytes) {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    TORCH_CHECK(file >= 0, "the text ", path.native(), " cannot be opened: ", std::strerror(errno));
    struct stat status = {};
    const bool is_same = fstat(file, &status) == 0 && status.st_size == bytes;
    void* const data = is_same ? mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    const int error = errno;
    close(file);
    TORCH_CHECK(is_same, "the text ", path.native(), " had ", bytes, " bytes when training began, ",
                "and has ", status.st_size, " now");
    TORCH_CHECK(data != MAP_FAILED, "the text ", path.native(),
                " cannot be mapped: ", std::strerror(error));
    data_ = static_cast<const unsigned char*>(data);
  }
  ~Mapping() { munmap(const_cast<unsigned char*>(data_), bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const unsigned char* data() const { return data_; }

 private:
  const unsigned char* data_ = nullptr;
  int64_t bytes_;
};

/// Files are mapped when they are first needed.
class MappedText::Mappings {
 public:
  void copy(const File& file, int64_t begin, int64_t count, unsigned char* target) {
    const std::lock_guard lock(mutex_);
    auto found = mappings_.find(&file);
    if (found == mappings_.end()) {
      if (mappings_.size() == kMostMappings) {
        mappings_.clear();
      }
      auto mapping = std::make_unique<Mapping>(file.path, file.end - file.begin);
      found = mappings_.emplace(&file, std::move(mapping)).first;
    }
    std::memcpy(target, found->second->data() + (begin - file.begin), count);
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const File*, std::unique_ptr<Mapping>> mappings_;
};

MappedText::MappedText(const fs::path& path) : mappings_(std::make_unique<Mappings>()) {
  int64_t begin = 0;
  for (const fs::path& file : files_of(path)) {
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(file, error));
    TORCH_CHECK(!error && access(file.c_str(), R_OK) == 0, "the text ", file.native(),
                " cannot be opened: ", std::strerror(error ? error.value() : errno));
    if (bytes > 0) {
      files_.push_back({file, begin, begin + bytes});
      begin += bytes;
    }
  }
}

MappedText::~MappedText() = default;

int64_t MappedText::size() const { return files_.empty() ? 0 : files_.back().end; }

void MappedText::copy(int64_t begin, int64_t count, unsigned char* target) const {
  TORCH_CHECK_INDEX(0 <= begin && 0 <= count && begin + count <= size(), "bytes ", begin, " to ",
                    begin + count, " of a text of ", size());
  auto file = std::ranges::upper_bound(files_, begin, {}, &File::end);
  while (count > 0) {
    const int64_t part = std::min(count, file->end - begin);
    mappings_->copy(*file, begin, part, target);
    target += part;
    begin += part;
    count -= part;
    ++file;
  }
}

}  // namespace gpt

#pragma once
// Reads checkpoints: any range of any tensor, from whatever ranges the files have.

#include <fairshard/store/manifest.h>
#include <fairshard/store/safetensors.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fairshard::store {

/// One complete checkpoint. Files are mapped when they are first needed, and of them only what is
/// asked for is read. Every block of bytes that is used is compared with its checksum, once. Errors
/// name the file, the tensor and the reason. Not to be used by several threads at once. Local.
class Reader {
 public:
  /// `directory` is that of the checkpoint itself, "runs/a/step-00000120".
  explicit Reader(std::string directory);
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  bool has(const std::string& key) const { return manifest_.tensors.count(key) > 0; }
  /// What follows the prefix in the keys of tensors that begin with it.
  std::vector<std::string> names_under(const std::string& prefix) const;
  /// The same for values.
  std::vector<std::string> value_names_under(const std::string& prefix) const;
  std::optional<std::string> value(const std::string& key) const;

  /// The elements from begin to end, in the order of memory and the dtype that `wanted` has; in
  /// host memory. Throws if the tensor is not there or has other sizes.
  at::Tensor read(const std::string& key, const Layout& wanted, int64_t begin, int64_t end);
  /// A whole tensor, row-major, in its own dtype.
  at::Tensor read(const std::string& key);
  /// Throws what read() would, and returns nothing: files are opened and checksums compared.
  void check(const std::string& key, const Layout& wanted, int64_t begin, int64_t end);

 private:
  const StoredEntry& entry(const std::string& key) const;
  SafetensorsFile& file(size_t number);
  const StoredEntry& checked_entry(const std::string& key, const Layout& wanted, int64_t begin,
                                   int64_t end) const;
  at::Tensor read_stored(const std::string& key, const StoredEntry& entry, int64_t begin,
                         int64_t end);
  /// The bytes of elements that are all in one range, as they are in the file, after verify().
  std::string_view verified_bytes(const std::string& key, const StoredEntry& entry,
                                  const StoredRange& range, int64_t begin, int64_t end);
  void verify(const std::string& key, const StoredRange& range, std::string_view bytes,
              const SafetensorsFile& file, int64_t first_byte, int64_t last_byte);

  std::string directory_;
  Manifest manifest_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  /// Of each range, by key and begin, the blocks that were found to be good.
  std::map<std::pair<std::string, int64_t>, std::vector<bool>> verified_;
};

}  // namespace fairshard::store

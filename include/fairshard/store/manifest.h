#pragma once
// What a checkpoint holds, and where: the content of its manifest.json.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fairshard::store {

/// The form of a whole tensor. Parts of it are ranges of elements in the order of memory that the
/// strides give, because that is how ranks own them.
struct Layout {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  int64_t numel() const;
  bool has_sizes_of(const Layout& other) const { return sizes == other.sizes; }
  /// Whether its elements lie in memory in the same order as those of one of the same sizes.
  bool has_order_of(const Layout& other) const;
};

/// The strides of a row-major tensor.
std::vector<int64_t> row_major(const std::vector<int64_t>& sizes);

/// A part of a tensor in one of the files.
struct StoredRange {
  int64_t begin = 0;
  int64_t end = 0;
  /// Which of the manifest's files.
  size_t file = 0;
  /// XXH3-64 of each block of its bytes.
  std::vector<uint64_t> checksums;
};

/// A tensor, in as many ranges as ranks have written.
struct StoredEntry {
  Layout layout;
  /// In order, without gaps and overlaps.
  std::vector<StoredRange> ranges;
};

/// One of the files, with its length.
struct StoredFile {
  std::string name;
  int64_t bytes = 0;
};

/// All that a checkpoint holds.
struct Manifest {
  int64_t step = 0;
  int64_t world_size = 1;
  std::vector<StoredFile> files;
  std::map<std::string, StoredEntry> tensors;
  /// Small values, as JSON texts.
  std::map<std::string, std::string> values;
};

/// The name that a range has in its file. A whole row-major tensor has its key alone.
std::string stored_name(const std::string& key, const StoredEntry& entry, const StoredRange& range);

/// "shard-00002-of-00004.safetensors".
std::string shard_name(int64_t rank, int64_t ranks);

/// Throws c10::ValueError with the key if ranges have gaps or overlaps, strides are not those of a
/// dense tensor, or checksums are missing. `what` names the manifest.
void check_manifest(const Manifest& manifest, const std::string& what);

/// What manifest.json holds.
std::string to_json(const Manifest& manifest);
/// Trusts nothing; files are only ever named as shard_name() does. `what` names it in errors.
Manifest parse_manifest(std::string_view text, const std::string& what);

}  // namespace fairshard::store

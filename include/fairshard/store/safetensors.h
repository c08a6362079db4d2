#pragma once
// store/ keeps state in files. This header: the safetensors format, which holds named tensors and
// nothing that could be run. Python's `safetensors` package reads what is written here, and the
// other way round.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fairshard::store {

/// Strings by name; all that the format has beside tensors.
using Metadata = std::map<std::string, std::string>;

/// A tensor in a file, row-major. Its bytes lie from `begin` to `end` in the file's data.
struct StoredTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  uint64_t begin;
  uint64_t end;
};

/// What a safetensors file says of itself.
struct SafetensorsHeader {
  /// In the order of their bytes.
  std::vector<StoredTensor> tensors;
  Metadata metadata;
  /// Where the data begins in the file.
  uint64_t data_begin = 0;
};

/// Reads the header of a file that is `file_bytes` long and begins with `start`, which holds at
/// least the header. Trusts nothing: whatever does not hold together is refused with `file` and,
/// where there is one, the tensor's name in the message. What it returns lies within the file.
SafetensorsHeader parse_safetensors(std::string_view start, uint64_t file_bytes,
                                    const std::string& file);

/// The name of a dtype in the format, for instance "BF16". Throws for one that it does not have.
std::string dtype_name(at::ScalarType dtype);
/// `what` names what it belongs to in the error for an unknown one.
at::ScalarType dtype_of_name(const std::string& name, const std::string& what = "safetensors");

/// A file, mapped into memory: only what is read is loaded. Links are not followed. The file must
/// not be shortened while it is open.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::string& path() const { return path_; }
  uint64_t file_bytes() const;
  const SafetensorsHeader& header() const { return header_; }
  /// nullptr if there is none of this name.
  const StoredTensor* find(const std::string& name) const;
  /// Throws if there is none of this name.
  const StoredTensor& at(const std::string& name) const;
  std::string_view bytes(const StoredTensor& tensor) const;
  /// A copy of a whole tensor, in host memory.
  at::Tensor read(const std::string& name) const;

 private:
  class Mapping;

  std::string path_;
  std::unique_ptr<Mapping> mapping_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, size_t> places_;
};

/// How many bytes have a checksum of their own, so that a reader of a part need not read all.
constexpr int64_t kChecksumBlockBytes = 16 << 20;

/// The XXH3-64 of each block of a tensor's bytes.
using Checksums = std::vector<uint64_t>;

/// The checksum of some bytes.
uint64_t checksum_of(std::string_view bytes);

/// A tensor that is to be written.
struct TensorToWrite {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  /// Asked for when its turn comes, and let go after that: a tensor of this dtype and this many
  /// elements, on any device, without gaps. Its memory is written as it is.
  std::function<at::Tensor()> values;
};

/// Writes a file, straight from the tensors' memory, and returns when it is on the disk. Returns
/// the checksums of each tensor. Refuses to replace a file. Throws with path and reason.
std::vector<Checksums> write_safetensors(const std::string& path,
                                         const std::vector<TensorToWrite>& tensors,
                                         const Metadata& metadata = {});

}  // namespace fairshard::store

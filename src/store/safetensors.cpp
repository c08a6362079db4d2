#include "files.h"
#include "json.h"
#include <fairshard/store/safetensors.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

namespace fairshard::store {
namespace {

std::string_view memory_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// All elements in the order of memory.
at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1}, tensor.storage_offset());
}

void check_values(const at::Tensor& values, const TensorToWrite& wanted, const std::string& path) {
  const int64_t numel =
      std::accumulate(wanted.sizes.begin(), wanted.sizes.end(), int64_t{1}, std::multiplies<>());
  TORCH_CHECK_VALUE(values.defined() && values.scalar_type() == wanted.dtype &&
                        values.numel() == numel && values.is_non_overlapping_and_dense(),
                    path, ": tensor '", wanted.name, "' is to be written as ", wanted.dtype,
                    c10::IntArrayRef(wanted.sizes), ", but is ",
                    values.defined() ? c10::str(values.scalar_type(), values.sizes(),
                                                " of strides ", values.strides())
                                     : "undefined");
}

Checksums write_values(OutputFile& file, const at::Tensor& values) {
  Checksums checksums;
  const at::Tensor flat = in_memory_order(values);
  const int64_t element = values.element_size();
  const int64_t block = kChecksumBlockBytes / element;
  for (int64_t begin = 0; begin < flat.numel(); begin += block) {
    const at::Tensor part = flat.narrow(0, begin, std::min(block, flat.numel() - begin)).cpu();
    checksums.push_back(checksum_of(memory_of(part)));
    file.write(memory_of(part));
  }
  return checksums;
}

std::string header_text(const std::vector<TensorToWrite>& tensors, const std::vector<size_t>& order,
                        const Metadata& metadata, const std::string& path) {
  Json json = Json::object();
  if (!metadata.empty()) {
    json["__metadata__"] = metadata;
  }
  int64_t offset = 0;
  for (const size_t i : order) {
    const TensorToWrite& tensor = tensors[i];
    check_name(tensor.name, path);
    TORCH_CHECK_VALUE(tensor.name != "__metadata__" && !json.contains(tensor.name), path,
                      ": a tensor named '", tensor.name, "' stands there already");
    const int64_t bytes =
        std::accumulate(tensor.sizes.begin(), tensor.sizes.end(),
                        static_cast<int64_t>(c10::elementSize(tensor.dtype)), std::multiplies<>());
    json[tensor.name] = {{"dtype", dtype_name(tensor.dtype)},
                         {"shape", tensor.sizes},
                         {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = dump_json(json, path);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

class SafetensorsFile::Mapping {
 public:
  explicit Mapping(const std::string& path) {
    const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    TORCH_CHECK(file >= 0, "cannot open ", path, ": ",
                errno == ELOOP ? "it is a link" : std::strerror(errno));
    struct stat info {};
    const bool is_regular = fstat(file, &info) == 0 && S_ISREG(info.st_mode);
    bytes_ = is_regular ? static_cast<size_t>(info.st_size) : 0;
    if (bytes_ > 0) {
      start_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    }
    const int error = errno;
    close(file);
    TORCH_CHECK(is_regular, path, ": it is no regular file");
    TORCH_CHECK(start_ != MAP_FAILED, "cannot map ", path, ": ", std::strerror(error));
  }
  ~Mapping() {
    if (bytes_ > 0) {
      munmap(start_, bytes_);
    }
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(start_), bytes_}; }

 private:
  void* start_ = nullptr;
  size_t bytes_ = 0;
};

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path),
      mapping_(std::make_unique<Mapping>(path)),
      header_(parse_safetensors(mapping_->bytes(), mapping_->bytes().size(), path)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) {
    places_.emplace(header_.tensors[i].name, i);
  }
}

SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

uint64_t SafetensorsFile::file_bytes() const { return mapping_->bytes().size(); }

const StoredTensor* SafetensorsFile::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &header_.tensors[found->second];
}

const StoredTensor& SafetensorsFile::at(const std::string& name) const {
  const StoredTensor* const tensor = find(name);
  TORCH_CHECK_INDEX(tensor, path_, ": there is no tensor '", name, "'");
  return *tensor;
}

std::string_view SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return mapping_->bytes().substr(header_.data_begin + tensor.begin, tensor.end - tensor.begin);
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const StoredTensor& tensor = at(name);
  at::Tensor result = at::empty(tensor.sizes, at::TensorOptions(tensor.dtype));
  const std::string_view source = bytes(tensor);
  if (!source.empty()) {
    std::memcpy(result.mutable_data_ptr(), source.data(), source.size());
  }
  return result;
}

uint64_t checksum_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::vector<Checksums> write_safetensors(const std::string& path,
                                         const std::vector<TensorToWrite>& tensors,
                                         const Metadata& metadata) {
  const at::NoGradGuard no_grad;
  // Wide elements first: then every tensor is aligned without gaps, which the format has not.
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return c10::elementSize(tensors[a].dtype) > c10::elementSize(tensors[b].dtype);
  });
  const std::string header = header_text(tensors, order, metadata, path);
  std::string length(8, '\0');
  for (size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  OutputFile file(path);
  file.write(length);
  file.write(header);
  std::vector<Checksums> checksums(tensors.size());
  for (const size_t i : order) {
    const at::Tensor values = tensors[i].values();
    check_values(values, tensors[i], path);
    checksums[i] = write_values(file, values);
  }
  file.finish();
  return checksums;
}

}  // namespace fairshard::store

// The head of a safetensors file: 8 bytes with the length of a JSON text (least byte first), the
// text, and then the data. Kept apart from the rest so that a fuzzer builds it quickly.
#include "json.h"
#include <fairshard/store/safetensors.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace fairshard::store {
namespace {

/// As in the format's own reader.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr uint64_t kLengthBytes = 8;

constexpr std::array<std::pair<const char*, at::ScalarType>, 20> kDtypes{{
    {"BOOL", at::kBool},
    {"U8", at::kByte},
    {"I8", at::kChar},
    {"I16", at::kShort},
    {"U16", at::kUInt16},
    {"I32", at::kInt},
    {"U32", at::kUInt32},
    {"I64", at::kLong},
    {"U64", at::kUInt64},
    {"F16", at::kHalf},
    {"BF16", at::kBFloat16},
    {"F32", at::kFloat},
    {"F64", at::kDouble},
    {"C64", at::kComplexFloat},
    {"F8_E4M3", at::kFloat8_e4m3fn},
    {"F8_E5M2", at::kFloat8_e5m2},
    {"F8_E4M3FNUZ", at::kFloat8_e4m3fnuz},
    {"F8_E5M2FNUZ", at::kFloat8_e5m2fnuz},
    {"F8_E8M0", at::kFloat8_e8m0fnu},
    {"C128", at::kComplexDouble},
}};

uint64_t header_length(std::string_view start, uint64_t file_bytes, const std::string& file) {
  TORCH_CHECK_VALUE(file_bytes >= kLengthBytes && start.size() >= kLengthBytes, file, ": ",
                    file_bytes, " bytes are too few for a safetensors file");
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(start[i])) << (8 * i);
  }
  TORCH_CHECK_VALUE(length <= kMaxHeaderBytes, file, ": a header of ", length,
                    " bytes, but no more than ", kMaxHeaderBytes, " are allowed");
  TORCH_CHECK_VALUE(length <= file_bytes - kLengthBytes && length <= start.size() - kLengthBytes,
                    file, ": a header of ", length, " bytes in a file of ", file_bytes);
  return length;
}

uint64_t byte_count(at::ScalarType dtype, const std::vector<int64_t>& sizes,
                    const std::string& what) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  bool is_empty = false;
  for (const int64_t size : sizes) {
    is_empty = is_empty || size == 0;
  }
  for (const int64_t size : sizes) {
    TORCH_CHECK_VALUE(size == 0 || !__builtin_mul_overflow(bytes, size, &bytes), what,
                      ": its sizes overflow");
  }
  return is_empty ? 0 : static_cast<uint64_t>(bytes);
}

StoredTensor to_tensor(const std::string& name, const Json& value, uint64_t data_bytes,
                       const std::string& file) {
  check_name(name, file);
  const std::string what = file + ": tensor '" + name + "'";
  StoredTensor tensor;
  tensor.name = name;
  const std::string& dtype = to_text(member(value, "dtype", what), what + ": dtype");
  tensor.dtype = dtype_of_name(dtype, what);
  tensor.sizes = to_counts(member(value, "shape", what), what + ": shape");
  const auto offsets = to_counts(member(value, "data_offsets", what), what + ": data_offsets");
  TORCH_CHECK_VALUE(offsets.size() == 2, what, ": ", offsets.size(),
                    " data_offsets, but there must be two");
  tensor.begin = static_cast<uint64_t>(offsets[0]);
  tensor.end = static_cast<uint64_t>(offsets[1]);
  TORCH_CHECK_VALUE(tensor.begin <= tensor.end && tensor.end <= data_bytes, what,
                    ": its bytes from ", tensor.begin, " to ", tensor.end, " are not in the ",
                    data_bytes, " bytes of data");
  const uint64_t needed = byte_count(tensor.dtype, tensor.sizes, what);
  TORCH_CHECK_VALUE(needed == tensor.end - tensor.begin, what, ": ", dtype, " of sizes ",
                    c10::IntArrayRef(tensor.sizes), " needs ", needed, " bytes, but has ",
                    tensor.end - tensor.begin);
  return tensor;
}

Metadata to_metadata(const Json& value, const std::string& file) {
  const std::string what = file + ": __metadata__";
  TORCH_CHECK_VALUE(value.is_object(), what, " is ", value.type_name(), ", not an object");
  Metadata result;
  for (const auto& [name, text] : value.items()) {
    result.emplace(name, to_text(text, what));
  }
  return result;
}

/// Every byte of the data belongs to exactly one tensor.
void check_order(const std::vector<StoredTensor>& tensors, uint64_t data_bytes,
                 const std::string& file) {
  uint64_t end = 0;
  for (const auto& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.begin == end, file, ": tensor '", tensor.name, "' begins at ",
                      tensor.begin, ", but what is before it ends at ", end);
    end = tensor.end;
  }
  TORCH_CHECK_VALUE(end == data_bytes, file, ": its tensors have ", end, " bytes, but there are ",
                    data_bytes, " bytes of data");
}

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, known] : kDtypes) {
    if (known == dtype) {
      return name;
    }
  }
  TORCH_CHECK_TYPE(false, "safetensors files cannot hold tensors of dtype ", dtype);
}

at::ScalarType dtype_of_name(const std::string& name, const std::string& what) {
  for (const auto& [known, dtype] : kDtypes) {
    if (name == known) {
      return dtype;
    }
  }
  TORCH_CHECK_VALUE(false, what, ": the dtype '", name, "' is not one that torch has");
}

SafetensorsHeader parse_safetensors(std::string_view start, uint64_t file_bytes,
                                    const std::string& file) {
  const uint64_t length = header_length(start, file_bytes, file);
  const uint64_t data_bytes = file_bytes - kLengthBytes - length;
  const Json json = parse_json(start.substr(kLengthBytes, length), file);
  TORCH_CHECK_VALUE(json.is_object(), file, ": its header is ", json.type_name(),
                    ", not an object");
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + length;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      header.metadata = to_metadata(value, file);
    } else {
      header.tensors.push_back(to_tensor(name, value, data_bytes, file));
    }
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const StoredTensor& a, const StoredTensor& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  check_order(header.tensors, data_bytes, file);
  return header;
}

}  // namespace fairshard::store

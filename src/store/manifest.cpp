#include "json.h"
#include <fairshard/store/manifest.h>
#include <fairshard/store/safetensors.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

namespace fairshard::store {
namespace {

constexpr const char* kFormat = "fairshard checkpoint";
constexpr int64_t kVersion = 1;
constexpr size_t kHexDigits = 16;

/// Dimensions that matter for the order in memory, from the outermost to the innermost.
std::vector<size_t> memory_order(const Layout& layout) {
  std::vector<size_t> order;
  for (size_t i = 0; i < layout.sizes.size(); ++i) {
    if (layout.sizes[i] != 1) {
      order.push_back(i);
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return layout.strides[a] > layout.strides[b]; });
  return order;
}

bool is_dense(const Layout& layout) {
  if (layout.strides.size() != layout.sizes.size()) {
    return false;
  }
  if (layout.numel() == 0) {
    return true;
  }
  int64_t stride = 1;
  const auto order = memory_order(layout);
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    if (layout.strides[*i] != stride) {
      return false;
    }
    stride *= layout.sizes[*i];
  }
  return true;
}

void check_sizes(const Layout& layout, const std::string& what) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(layout.dtype));
  for (const int64_t size : layout.sizes) {
    TORCH_CHECK_VALUE(size >= 0 && (size == 0 || !__builtin_mul_overflow(bytes, size, &bytes)),
                      what, ": its sizes overflow");
  }
}

void check_entry(const StoredEntry& entry, size_t files, const std::string& what) {
  check_sizes(entry.layout, what);
  TORCH_CHECK_VALUE(is_dense(entry.layout), what, ": strides ",
                    c10::IntArrayRef(entry.layout.strides), " do not fit to sizes ",
                    c10::IntArrayRef(entry.layout.sizes));
  const int64_t numel = entry.layout.numel();
  const auto element = static_cast<int64_t>(c10::elementSize(entry.layout.dtype));
  int64_t end = 0;
  for (const auto& range : entry.ranges) {
    TORCH_CHECK_VALUE(range.begin == end && range.end >= range.begin && range.end <= numel, what,
                      ": elements from ", range.begin, " to ", range.end, " follow those up to ",
                      end, " of ", numel);
    end = range.end;
    TORCH_CHECK_VALUE(range.file < files, what, ": file number ", range.file, " of ", files);
    const int64_t bytes = (range.end - range.begin) * element;
    const int64_t blocks = bytes / kChecksumBlockBytes + (bytes % kChecksumBlockBytes > 0);
    TORCH_CHECK_VALUE(static_cast<int64_t>(range.checksums.size()) == blocks, what, ": ",
                      range.checksums.size(), " checksums for ", blocks, " blocks");
  }
  TORCH_CHECK_VALUE(end == numel && !entry.ranges.empty(), what, ": only ", end, " of ", numel,
                    " elements are in it");
}

std::string to_hex(uint64_t number) {
  std::array<char, kHexDigits + 1> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(number));
  return text.data();
}

uint64_t from_hex(const std::string& text, const std::string& what) {
  TORCH_CHECK_VALUE(
      text.size() == kHexDigits && text.find_first_not_of("0123456789abcdef") == std::string::npos,
      what, ": a checksum is no number of ", kHexDigits, " hexadecimal digits");
  return std::strtoull(text.c_str(), nullptr, 16);
}

Json entry_to_json(const StoredEntry& entry) {
  Json json{{"dtype", dtype_name(entry.layout.dtype)}, {"shape", entry.layout.sizes}};
  if (entry.layout.strides != row_major(entry.layout.sizes)) {
    json["strides"] = entry.layout.strides;
  }
  Json& ranges = json["ranges"] = Json::array();
  for (const auto& range : entry.ranges) {
    Json sums = Json::array();
    for (const uint64_t sum : range.checksums) {
      sums.push_back(to_hex(sum));
    }
    ranges.push_back(
        {{"begin", range.begin}, {"end", range.end}, {"file", range.file}, {"checksums", sums}});
  }
  return json;
}

StoredEntry entry_from_json(const Json& json, const std::string& what) {
  StoredEntry entry;
  entry.layout.dtype = dtype_of_name(to_text(member(json, "dtype", what), what), what);
  entry.layout.sizes = to_counts(member(json, "shape", what), what + ": shape");
  check_sizes(entry.layout, what);
  entry.layout.strides = json.contains("strides") ? to_counts(json["strides"], what + ": strides")
                                                  : row_major(entry.layout.sizes);
  const Json& ranges = member(json, "ranges", what);
  TORCH_CHECK_VALUE(ranges.is_array(), what, ": ranges are ", ranges.type_name(), ", no list");
  for (const auto& item : ranges) {
    StoredRange range;
    range.begin = to_count(member(item, "begin", what), what + ": begin");
    range.end = to_count(member(item, "end", what), what + ": end");
    range.file = static_cast<size_t>(to_count(member(item, "file", what), what + ": file"));
    const Json& sums = member(item, "checksums", what);
    TORCH_CHECK_VALUE(sums.is_array(), what, ": checksums are ", sums.type_name(), ", no list");
    for (const auto& sum : sums) {
      range.checksums.push_back(from_hex(to_text(sum, what + ": checksums"), what));
    }
    entry.ranges.push_back(std::move(range));
  }
  return entry;
}

}  // namespace

int64_t Layout::numel() const {
  int64_t result = 1;
  for (const int64_t size : sizes) {
    if (size == 0) {
      return 0;
    }
    result *= size;
  }
  return result;
}

bool Layout::has_order_of(const Layout& other) const {
  return numel() == 0 || memory_order(*this) == memory_order(other);
}

std::vector<int64_t> row_major(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

std::string stored_name(const std::string& key, const StoredEntry& entry,
                        const StoredRange& range) {
  const Layout plain{entry.layout.dtype, entry.layout.sizes, row_major(entry.layout.sizes)};
  const bool is_whole = range.begin == 0 && range.end == entry.layout.numel();
  return is_whole && entry.layout.has_order_of(plain)
             ? key
             : c10::str(key, "[", range.begin, ":", range.end, "]");
}

std::string shard_name(int64_t rank, int64_t ranks) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "shard-%05lld-of-%05lld.safetensors",
                static_cast<long long>(rank), static_cast<long long>(ranks));
  return text.data();
}

void check_manifest(const Manifest& manifest, const std::string& what) {
  for (const auto& [key, entry] : manifest.tensors) {
    check_name(key, what);
    check_entry(entry, manifest.files.size(), c10::str(what, ": '", key, "'"));
  }
}

std::string to_json(const Manifest& manifest) {
  const std::string what = "manifest";
  Json json{{"format", kFormat},
            {"version", kVersion},
            {"step", manifest.step},
            {"world_size", manifest.world_size},
            {"block_bytes", kChecksumBlockBytes}};
  Json& files = json["files"] = Json::array();
  for (const auto& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  Json& tensors = json["tensors"] = Json::object();
  for (const auto& [key, entry] : manifest.tensors) {
    tensors[key] = entry_to_json(entry);
  }
  Json& values = json["values"] = Json::object();
  for (const auto& [key, text] : manifest.values) {
    values[key] = parse_json(text, "value '" + key + "'");
  }
  return dump_json(json, what);
}

Manifest parse_manifest(std::string_view text, const std::string& what) {
  const Json json = parse_json(text, what);
  const Json& format = member(json, "format", what);
  TORCH_CHECK_VALUE(format.is_string() && format == kFormat, what,
                    ": this is no manifest of a fairshard checkpoint");
  const int64_t version = to_count(member(json, "version", what), what + ": version");
  TORCH_CHECK_VALUE(version == kVersion, what, ": version ", version,
                    " is not known; a newer fairshard has written it");
  const int64_t block = to_count(member(json, "block_bytes", what), what + ": block_bytes");
  TORCH_CHECK_VALUE(block == kChecksumBlockBytes, what, ": checksums of blocks of ", block,
                    " bytes, but only ", kChecksumBlockBytes, " is known");
  Manifest manifest;
  manifest.step = to_count(member(json, "step", what), what + ": step");
  manifest.world_size = to_count(member(json, "world_size", what), what + ": world_size");
  const Json& files = member(json, "files", what);
  TORCH_CHECK_VALUE(files.is_array(), what, ": files are ", files.type_name(), ", no list");
  for (const auto& item : files) {
    StoredFile file;
    file.name = to_text(member(item, "name", what + ": file"), what + ": file");
    file.bytes = to_count(member(item, "bytes", what + ": file"), what + ": file");
    const auto number = static_cast<int64_t>(manifest.files.size());
    // Nothing else is ever opened, so no name leads out of the folder.
    TORCH_CHECK_VALUE(file.name == shard_name(number, manifest.world_size), what, ": file '",
                      file.name, "', but file ", number, " of ", manifest.world_size,
                      " must be named ", shard_name(number, manifest.world_size));
    manifest.files.push_back(std::move(file));
  }
  const Json& tensors = member(json, "tensors", what);
  TORCH_CHECK_VALUE(tensors.is_object(), what, ": tensors are ", tensors.type_name());
  for (const auto& [key, value] : tensors.items()) {
    manifest.tensors.emplace(key, entry_from_json(value, c10::str(what, ": '", key, "'")));
  }
  const Json& values = member(json, "values", what);
  TORCH_CHECK_VALUE(values.is_object(), what, ": values are ", values.type_name());
  for (const auto& [key, value] : values.items()) {
    check_name(key, what);
    manifest.values.emplace(key, dump_json(value, what));
  }
  check_manifest(manifest, what);
  return manifest;
}

}  // namespace fairshard::store

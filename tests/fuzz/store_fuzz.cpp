// libFuzzer target: whatever the bytes, the readers of safetensors headers and manifests either
// refuse them with an error or return what holds together. `scripts/fuzz` builds and runs it.
#include <fairshard/store/manifest.h>
#include <fairshard/store/safetensors.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <cstdlib>
#include <string_view>

namespace {

using namespace fairshard::store;

void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

void read_header(std::string_view text) {
  const SafetensorsHeader header = parse_safetensors(text, text.size(), "fuzzed");
  const uint64_t data_bytes = text.size() - header.data_begin;
  uint64_t end = 0;
  for (const auto& tensor : header.tensors) {
    require(tensor.begin == end && tensor.end <= data_bytes);
    uint64_t bytes = c10::elementSize(tensor.dtype);
    for (const int64_t size : tensor.sizes) {
      require(size >= 0);
      bytes *= static_cast<uint64_t>(size);
    }
    require(bytes == tensor.end - tensor.begin);
    end = tensor.end;
  }
  require(end == data_bytes);
}

void read_manifest_text(std::string_view text) {
  const Manifest manifest = parse_manifest(text, "fuzzed");
  for (const auto& file : manifest.files) {
    require(file.name.find('/') == std::string::npos);
  }
  for (const auto& [key, entry] : manifest.tensors) {
    int64_t end = 0;
    for (const auto& range : entry.ranges) {
      require(range.begin == end && range.file < manifest.files.size());
      end = range.end;
      stored_name(key, entry, range);
    }
    require(end == entry.layout.numel());
  }
  // What was accepted is written and accepted again, as the same.
  const std::string again = to_json(manifest);
  require(to_json(parse_manifest(again, "again")) == again);
}

template <typename Read>
void accept_or_refuse(Read read, std::string_view text) {
  try {
    read(text);
  } catch (const c10::Error&) {  // NOLINT(bugprone-empty-catch): refused, as it may be
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  accept_or_refuse(read_header, text);
  accept_or_refuse(read_manifest_text, text);
  return 0;
}

#include "staging.h"
#include <fairshard/store/reader.h>
#include <fairshard/store/state.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace fairshard::store {
namespace {

template <typename Map>
std::vector<std::string> rests_of_keys(const Map& map, const std::string& prefix) {
  std::vector<std::string> rests;
  for (auto item = map.lower_bound(prefix); item != map.end() && item->first.rfind(prefix, 0) == 0;
       ++item) {
    rests.push_back(item->first.substr(prefix.size()));
  }
  return rests;
}

/// Calls `fn` with each stored range that has some of the elements, and with which of them.
template <typename Fn>
void for_each_overlap(const StoredEntry& entry, int64_t begin, int64_t end, Fn fn) {
  // The first range that ends behind `begin`.
  auto range = std::partition_point(entry.ranges.begin(), entry.ranges.end(),
                                    [&](const StoredRange& r) { return r.end <= begin; });
  for (; range != entry.ranges.end() && range->begin < end; ++range) {
    fn(*range, std::max(begin, range->begin), std::min(end, range->end));
  }
}

}  // namespace

Reader::Reader(std::string directory)
    : directory_(std::move(directory)),
      manifest_(read_manifest(directory_)),
      files_(manifest_.files.size()) {}

std::vector<std::string> Reader::names_under(const std::string& prefix) const {
  return rests_of_keys(manifest_.tensors, prefix);
}

std::vector<std::string> Reader::value_names_under(const std::string& prefix) const {
  return rests_of_keys(manifest_.values, prefix);
}

std::optional<std::string> Reader::value(const std::string& key) const {
  const auto found = manifest_.values.find(key);
  return found == manifest_.values.end() ? std::nullopt : std::optional(found->second);
}

const StoredEntry& Reader::entry(const std::string& key) const {
  const auto found = manifest_.tensors.find(key);
  TORCH_CHECK_INDEX(found != manifest_.tensors.end(), directory_, ": there is no tensor '", key,
                    "'");
  return found->second;
}

SafetensorsFile& Reader::file(size_t number) {
  auto& opened = files_.at(number);
  if (!opened) {
    const StoredFile& stored = manifest_.files[number];
    opened = std::make_unique<SafetensorsFile>(directory_ + "/" + stored.name);
    TORCH_CHECK_VALUE(static_cast<int64_t>(opened->file_bytes()) == stored.bytes, opened->path(),
                      ": it has ", opened->file_bytes(), " bytes, but the manifest says ",
                      stored.bytes);
  }
  return *opened;
}

const StoredEntry& Reader::checked_entry(const std::string& key, const Layout& wanted,
                                         int64_t begin, int64_t end) const {
  const StoredEntry& stored = entry(key);
  TORCH_CHECK_VALUE(stored.layout.has_sizes_of(wanted), directory_, ": '", key, "' has sizes ",
                    c10::IntArrayRef(stored.layout.sizes), ", but ", c10::IntArrayRef(wanted.sizes),
                    " is wanted");
  TORCH_CHECK_INDEX(0 <= begin && begin <= end && end <= wanted.numel(), directory_, ": '", key,
                    "' has ", wanted.numel(), " elements, but those from ", begin, " to ", end,
                    " are wanted");
  return stored;
}

at::Tensor Reader::read(const std::string& key, const Layout& wanted, int64_t begin, int64_t end) {
  const at::NoGradGuard no_grad;
  const StoredEntry& stored = checked_entry(key, wanted, begin, end);
  if (stored.layout.has_order_of(wanted)) {
    return read_stored(key, stored, begin, end).to(wanted.dtype);
  }
  // Elements that follow each other in one order are far apart in the other: take all of them.
  const at::Tensor flat = read_stored(key, stored, 0, wanted.numel());
  const at::Tensor ordered =
      at::empty_strided(wanted.sizes, wanted.strides, flat.options().dtype(wanted.dtype));
  ordered.copy_(flat.as_strided(stored.layout.sizes, stored.layout.strides));
  return memory_view(ordered).slice(0, begin, end).clone();
}

void Reader::check(const std::string& key, const Layout& wanted, int64_t begin, int64_t end) {
  const StoredEntry& stored = checked_entry(key, wanted, begin, end);
  const bool has_order = stored.layout.has_order_of(wanted);
  const int64_t first = has_order ? begin : 0;
  const int64_t last = has_order ? end : wanted.numel();
  for_each_overlap(stored, first, last, [&](const StoredRange& range, int64_t from, int64_t to) {
    verified_bytes(key, stored, range, from, to);
  });
}

at::Tensor Reader::read(const std::string& key) {
  const Layout& layout = entry(key).layout;
  const Layout plain{layout.dtype, layout.sizes, row_major(layout.sizes)};
  return read(key, plain, 0, plain.numel()).view(layout.sizes);
}

/// Elements in the order in which they are stored.
at::Tensor Reader::read_stored(const std::string& key, const StoredEntry& entry, int64_t begin,
                               int64_t end) {
  at::Tensor result = at::empty({end - begin}, at::TensorOptions(entry.layout.dtype));
  auto* const target = static_cast<char*>(result.mutable_data_ptr());
  const int64_t element = result.element_size();
  for_each_overlap(entry, begin, end, [&](const StoredRange& range, int64_t from, int64_t to) {
    const std::string_view bytes = verified_bytes(key, entry, range, from, to);
    if (!bytes.empty()) {
      std::memcpy(target + (from - begin) * element, bytes.data(), bytes.size());
    }
  });
  return result;
}

std::string_view Reader::verified_bytes(const std::string& key, const StoredEntry& entry,
                                        const StoredRange& range, int64_t begin, int64_t end) {
  const SafetensorsFile& source = file(range.file);
  const StoredTensor& tensor = source.at(stored_name(key, entry, range));
  const auto element = static_cast<int64_t>(c10::elementSize(entry.layout.dtype));
  const std::string_view bytes = source.bytes(tensor);
  TORCH_CHECK_VALUE(tensor.dtype == entry.layout.dtype &&
                        static_cast<int64_t>(bytes.size()) == (range.end - range.begin) * element,
                    source.path(), ": tensor '", tensor.name, "' has ", bytes.size(), " bytes of ",
                    tensor.dtype, ", but the manifest says ", range.end - range.begin,
                    " elements of ", entry.layout.dtype);
  const int64_t first = (begin - range.begin) * element;
  const int64_t last = (end - range.begin) * element;
  verify(key, range, bytes, source, first, last);
  return bytes.substr(static_cast<size_t>(first), static_cast<size_t>(last - first));
}

void Reader::verify(const std::string& key, const StoredRange& range, std::string_view bytes,
                    const SafetensorsFile& file, int64_t first_byte, int64_t last_byte) {
  auto& is_good = verified_[{key, range.begin}];
  is_good.resize(range.checksums.size());
  for (int64_t block = first_byte / kChecksumBlockBytes; block * kChecksumBlockBytes < last_byte;
       ++block) {
    const auto number = static_cast<size_t>(block);
    if (is_good[number]) {
      continue;
    }
    const auto start = static_cast<size_t>(block * kChecksumBlockBytes);
    TORCH_CHECK_VALUE(
        checksum_of(bytes.substr(start, kChecksumBlockBytes)) == range.checksums[number],
        file.path(), ": tensor '", key, "' is damaged: the checksum of its bytes from ", start,
        " on is another than when it was written");
    is_good[number] = true;
  }
}

}  // namespace fairshard::store

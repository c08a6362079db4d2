#include "share.h"

#include "files.h"
#include "json.h"
#include <fairshard/store/safetensors.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fairshard::store {
namespace {

StoredEntry stored(const State::Entry& entry) {
  return {entry.layout, {StoredRange{entry.begin, entry.end, 0, {}}}};
}

TensorToWrite to_write(const State::Entry& entry) {
  const StoredEntry as_stored = stored(entry);
  const std::string name = stored_name(entry.key, as_stored, as_stored.ranges[0]);
  const bool is_plain = name == entry.key;
  return {name, entry.layout.dtype,
          is_plain ? entry.layout.sizes : std::vector<int64_t>{entry.end - entry.begin},
          entry.values};
}

void merge_tensor(Manifest& manifest, size_t rank, const Json& item) {
  const auto& key = item["key"].get_ref<const std::string&>();
  StoredEntry mine;
  mine.layout = {static_cast<at::ScalarType>(item["dtype"].get<int>()),
                 item["shape"].get<std::vector<int64_t>>(),
                 item["strides"].get<std::vector<int64_t>>()};
  const StoredRange range{item["begin"].get<int64_t>(), item["end"].get<int64_t>(), rank,
                          item["checksums"].get<Checksums>()};
  auto& entry = manifest.tensors.try_emplace(key, mine).first->second;
  TORCH_CHECK_VALUE(entry.layout.dtype == mine.layout.dtype &&
                        entry.layout.has_sizes_of(mine.layout) &&
                        entry.layout.has_order_of(mine.layout),
                    "'", key, "' is ", mine.layout.dtype, c10::IntArrayRef(mine.layout.sizes),
                    " of strides ", c10::IntArrayRef(mine.layout.strides), " on rank ", rank,
                    ", but ", entry.layout.dtype, c10::IntArrayRef(entry.layout.sizes),
                    " of strides ", c10::IntArrayRef(entry.layout.strides), " on a rank before it");
  entry.ranges.push_back(range);
}

}  // namespace

std::string write_share(const State& state, const std::string& path) {
  std::vector<TensorToWrite> tensors;
  tensors.reserve(state.entries().size());
  for (const auto& entry : state.entries()) {
    tensors.push_back(to_write(entry));
  }
  const auto checksums = write_safetensors(path, tensors, {{"format", "pt"}});
  Json json{{"bytes", file_length(path)},
            {"parts", state.parts()},
            {"tensors", Json::array()},
            {"values", Json::object()}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& entry = state.entries()[i];
    json["tensors"].push_back({{"key", entry.key},
                               {"dtype", static_cast<int>(entry.layout.dtype)},
                               {"shape", entry.layout.sizes},
                               {"strides", entry.layout.strides},
                               {"begin", entry.begin},
                               {"end", entry.end},
                               {"checksums", checksums[i]}});
  }
  for (const auto& [key, text] : state.values()) {
    check_name(key, "checkpoint");
    json["values"][key] = parse_json(text, "value '" + key + "'");
  }
  return dump_json(json, "checkpoint");
}

Manifest merge_shares(const std::vector<std::string>& shares, int64_t step) {
  Manifest manifest;
  manifest.step = step;
  manifest.world_size = static_cast<int64_t>(shares.size());
  Json parts;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    const Json share = parse_json(shares[rank], c10::str("the share of rank ", rank));
    manifest.files.push_back({shard_name(static_cast<int64_t>(rank), manifest.world_size),
                              share["bytes"].get<int64_t>()});
    if (rank == 0) {
      parts = share["parts"];
    }
    TORCH_CHECK_VALUE(share["parts"] == parts, "rank ", rank, " saves the parts ",
                      dump_json(share["parts"], "parts"), ", but rank 0 ",
                      dump_json(parts, "parts"), ": all ranks save the same ones in one order");
    for (const auto& item : share["tensors"]) {
      merge_tensor(manifest, rank, item);
    }
    for (const auto& [key, value] : share["values"].items()) {
      TORCH_CHECK_VALUE(manifest.values.emplace(key, dump_json(value, key)).second, "the value '",
                        key, "' comes from rank ", rank, " and from one before it");
    }
  }
  for (auto& [key, entry] : manifest.tensors) {
    std::sort(entry.ranges.begin(), entry.ranges.end(),
              [](const StoredRange& a, const StoredRange& b) {
                return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
              });
  }
  check_manifest(manifest, "checkpoint");
  return manifest;
}

}  // namespace fairshard::store

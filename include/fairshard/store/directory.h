#pragma once
// Checkpoints in a folder: one folder each, named after its step, complete or not there at all.
//
//   runs/a/step-00000120/manifest.json
//                        shard-00000-of-00002.safetensors
//                        shard-00001-of-00002.safetensors

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fairshard::store {

/// "step-00000120".
std::string checkpoint_name(int64_t step);

/// The steps of the complete checkpoints in a folder, ascending: their manifests can be read, and
/// all files have their lengths (checksums are looked at when they are loaded). Others are
/// passed over. Local.
std::vector<int64_t> list_checkpoints(const std::string& root);

/// The folder of the newest complete checkpoint, if there is one. Local.
std::optional<std::string> latest_checkpoint(const std::string& root);

}  // namespace fairshard::store

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

/// Why the folder of a checkpoint cannot be used: its manifest cannot be read, is of another
/// version, or a file is missing or has another length. Empty if it can be. Local.
std::string fault_of(const std::string& directory);

/// The steps of the complete checkpoints in a folder, ascending: their manifests can be read, and
/// all files have their lengths (checksums are looked at when they are loaded). Others are
/// passed over. Local.
std::vector<int64_t> list_checkpoints(const std::string& root);

/// The folder of the newest complete checkpoint; nothing if there are none at all. Newer ones that
/// cannot be used are warned of; if none can be, throws c10::ValueError with all reasons. Local.
std::optional<std::string> latest_checkpoint(const std::string& root);

}  // namespace fairshard::store

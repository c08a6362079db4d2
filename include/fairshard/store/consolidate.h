#pragma once
// A checkpoint of many ranks as one file that other programs read.

#include <string>

namespace fairshard::store {

/// Writes the tensors of a checkpoint, whole and row-major, to one safetensors file, a tensor at a
/// time. With `part`, only those under "part/", and without that in their names: the part "model"
/// becomes what the model's own state dict has. Values go to the file's metadata, as JSON texts.
/// Refuses to replace a file. Local.
void consolidate(const std::string& checkpoint, const std::string& file,
                 const std::string& part = "");

}  // namespace fairshard::store

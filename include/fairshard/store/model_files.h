#pragma once
// The weights of a model as other programs keep them: one safetensors file, or several and an index
// of them, as Hugging Face's libraries write and read them.

#include <fairshard/store/safetensors.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fairshard::store {

/// Opens what is there of a model. Local.
class ModelFiles {
 public:
  /// A safetensors file, an index ("model.safetensors.index.json"), or a folder that has one of
  /// these under its usual name. Links that are named here are followed. Files of an index stand
  /// beside it.
  explicit ModelFiles(const std::string& path);

  /// For messages.
  const std::string& path() const { return path_; }
  /// In the files' order.
  std::vector<std::string> names() const;
  /// nullptr if there is none of this name.
  const StoredTensor* find(const std::string& name) const;
  /// A copy of a whole tensor, in host memory.
  at::Tensor read(const std::string& name) const;

 private:
  void open_index(const std::string& index);

  std::string path_;
  std::vector<SafetensorsFile> files_;
  /// The number of the file that has a tensor.
  std::map<std::string, size_t> places_;
};

/// Writes a model to `file`, or, if that would have more than `max_file_bytes` (0: never), to files
/// of at most so many, each with a tensor at least, and an index of them: of "model.safetensors",
/// "model-00001-of-00003.safetensors" and "model.safetensors.index.json". The index comes last.
/// Refuses to replace a file. Local.
void write_model_files(const std::string& file, const std::vector<TensorToWrite>& tensors,
                       int64_t max_file_bytes = 0);

}  // namespace fairshard::store

#include "files.h"
#include "json.h"
#include <fairshard/store/model_files.h>
#include <fairshard/store/pending_file.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <utility>

namespace fairshard::store {
namespace {

constexpr const char* kFile = "model.safetensors";
constexpr const char* kIndexEnd = ".index.json";
constexpr int64_t kMaxIndexBytes = 100 << 20;

/// Without links: the cache of a hub is made of them.
std::string target_of(const std::string& path) {
  char real[PATH_MAX];
  TORCH_CHECK_VALUE(realpath(path.c_str(), real), "cannot open ", path, ": ", std::strerror(errno));
  return real;
}

/// With a slash at its end; empty for the current one.
std::string folder_of(const std::string& path) {
  return path.substr(0, path.find_last_of('/') + 1);
}

/// What a folder has.
std::string model_in(const std::string& folder) {
  for (const std::string& name : {std::string(kFile), std::string(kFile) + kIndexEnd}) {
    const std::string path = c10::str(folder, "/", name);
    if (is_there(path)) {
      return path;
    }
  }
  TORCH_CHECK_VALUE(false, folder, " has neither ", kFile, " nor ", kFile, kIndexEnd);
}

int64_t bytes_of(const TensorToWrite& tensor) {
  return std::accumulate(tensor.sizes.begin(), tensor.sizes.end(),
                         static_cast<int64_t>(c10::elementSize(tensor.dtype)), std::multiplies<>());
}

/// The tensors of each file, in order.
std::vector<std::vector<TensorToWrite>> divided(const std::vector<TensorToWrite>& tensors,
                                                int64_t max_bytes) {
  std::vector<std::vector<TensorToWrite>> files(1);
  int64_t bytes = 0;
  for (const TensorToWrite& tensor : tensors) {
    if (max_bytes > 0 && !files.back().empty() && bytes + bytes_of(tensor) > max_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    bytes += bytes_of(tensor);
    files.back().push_back(tensor);
  }
  return files;
}

/// Not yet under its name.
std::unique_ptr<PendingFile> write_pending(const std::string& path,
                                           const std::vector<TensorToWrite>& tensors) {
  auto pending = std::make_unique<PendingFile>(path, PendingFile::Existing::kKeep);
  write_safetensors(pending->temporary_path(), tensors, {{"format", "pt"}});
  return pending;
}

/// "model-00001-of-00003.safetensors", without the folder.
std::string part_name(const std::string& stem, size_t number, size_t count) {
  char text[32];
  std::snprintf(text, sizeof(text), "-%05zu-of-%05zu", number + 1, count);
  return stem + text + ".safetensors";
}

}  // namespace

ModelFiles::ModelFiles(const std::string& path) : path_(path) {
  const std::string found = is_directory(path) ? model_in(path) : path;
  if (found.ends_with(kIndexEnd)) {
    open_index(found);
    return;
  }
  files_.emplace_back(target_of(found));
  for (const StoredTensor& tensor : files_[0].header().tensors) {
    places_.emplace(tensor.name, 0);
  }
}

void ModelFiles::open_index(const std::string& index) {
  const Json json = parse_json(read_file(target_of(index), kMaxIndexBytes), index);
  std::map<std::string, size_t> numbers;
  for (const auto& [name, value] : member(json, "weight_map", index).items()) {
    const std::string& file = to_text(value, c10::str(index, ": the file of '", name, "'"));
    check_name(name, index);
    check_name(file, index);
    TORCH_CHECK_VALUE(!file.empty() && file[0] != '.' && file.find('/') == std::string::npos, index,
                      ": tensor '", name, "' is in '", file, "', which is not a file beside it");
    const auto [found, is_new] = numbers.emplace(file, files_.size());
    if (is_new) {
      files_.emplace_back(target_of(folder_of(index) + file));
    }
    TORCH_CHECK_VALUE(files_[found->second].find(name), index, ": ", file, " has no tensor '", name,
                      "'");
    places_.emplace(name, found->second);
  }
}

std::vector<std::string> ModelFiles::names() const {
  std::vector<std::string> result;
  result.reserve(places_.size());
  for (const auto& [name, file] : places_) {
    result.push_back(name);
  }
  return result;
}

const StoredTensor* ModelFiles::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : files_[found->second].find(name);
}

at::Tensor ModelFiles::read(const std::string& name) const {
  const auto found = places_.find(name);
  TORCH_CHECK_VALUE(found != places_.end(), path_, ": there is no tensor '", name, "'");
  return files_[found->second].read(name);
}

void write_model_files(const std::string& file, const std::vector<TensorToWrite>& tensors,
                       int64_t max_file_bytes) {
  constexpr const char* kEnd = ".safetensors";
  TORCH_CHECK_VALUE(file.ends_with(kEnd), "the file is '", file, "', but must end in ", kEnd);
  TORCH_CHECK_VALUE(max_file_bytes >= 0, "max_file_bytes is ", max_file_bytes,
                    ", but must not be negative");
  const auto files = divided(tensors, max_file_bytes);
  if (files.size() == 1) {
    write_pending(file, tensors)->publish();
    return;
  }
  PendingFile index(file + kIndexEnd, PendingFile::Existing::kKeep);
  const std::string folder = folder_of(file);
  const std::string name = file.substr(folder.size());
  const std::string stem = name.substr(0, name.size() - std::strlen(kEnd));
  Json json{{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
  int64_t total = 0;
  std::vector<std::unique_ptr<PendingFile>> pending;  // all of them, or none
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string part = part_name(stem, i, files.size());
    pending.push_back(write_pending(folder + part, files[i]));
    for (const TensorToWrite& tensor : files[i]) {
      json["weight_map"][tensor.name] = part;
      total += bytes_of(tensor);
    }
  }
  json["metadata"]["total_size"] = total;
  OutputFile out(index.temporary_path());
  out.write(dump_json(json, file + kIndexEnd));
  out.finish();
  for (const auto& part : pending) {
    part->publish();
  }
  index.publish();
}

}  // namespace fairshard::store

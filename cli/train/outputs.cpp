#include "outputs.h"

#include <c10/util/StringUtil.h>

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace fairshard::cli::training {
namespace {

namespace fs = std::filesystem;

/// Why there is no such folder to write to; empty if there is one now.
std::string folder_fault(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return c10::str("the folder ", folder.native(), " cannot be made: ", error.message());
  }
  return access(folder.c_str(), W_OK | X_OK) == 0
             ? ""
             : c10::str("the folder ", folder.native(),
                        " cannot be written to: ", std::strerror(errno));
}

std::string file_fault(const fs::path& file) {
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) {
    return c10::str(file.native(), " is a folder, but a file is to be written");
  }
  if (fs::exists(file, ignored)) {
    return access(file.c_str(), W_OK) == 0
               ? ""
               : c10::str(file.native(), " cannot be written to: ", std::strerror(errno));
  }
  const fs::path folder = file.parent_path();
  return folder_fault(folder.empty() ? "." : folder);
}

/// A model is written beside what the folder has, and replaces nothing.
std::string export_fault(const fs::path& folder) {
  for (const char* const name :
       {"config.json", "model.safetensors", "model.safetensors.index.json"}) {
    std::error_code ignored;
    if (fs::exists(folder / name, ignored)) {
      return c10::str((folder / name).native(), " exists: choose another folder");
    }
  }
  return folder_fault(folder);
}

}  // namespace

std::optional<Refusal> prepare_outputs(const TrainOptions& options) {
  struct Output {
    const char* option;
    std::string fault;
  };
  for (const auto& [option, fault] :
       {Output{"--save", options.save.empty() ? "" : folder_fault(options.save)},
        Output{"--export", options.export_to.empty() ? "" : export_fault(options.export_to)},
        Output{"--log", options.log.empty() ? "" : file_fault(options.log)},
        Output{"--trace", options.trace.empty() ? "" : file_fault(options.trace)}}) {
    if (!fault.empty()) {
      return Refusal{option, fault};
    }
  }
  return std::nullopt;
}

}  // namespace fairshard::cli::training

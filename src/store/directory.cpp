#include "files.h"
#include "staging.h"
#include <fairshard/comm/reason.h>
#include <fairshard/store/directory.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace fairshard::store {
namespace {

constexpr const char* kPrefix = "step-";
constexpr const char* kTemporaryPrefix = ".step-";
constexpr size_t kMinDigits = 8;
constexpr size_t kMaxDigits = 18;

std::optional<int64_t> step_of(const std::string& name) {
  if (name.rfind(kPrefix, 0) != 0) {
    return std::nullopt;
  }
  const std::string digits = name.substr(std::char_traits<char>::length(kPrefix));
  const bool is_number = digits.size() >= kMinDigits && digits.size() <= kMaxDigits &&
                         digits.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? std::optional<int64_t>(std::atoll(digits.c_str())) : std::nullopt;
}

std::string temporary_path(const std::string& root, int64_t step) {
  return root + "/." + checkpoint_name(step) + ".tmp";
}

/// All that is named as a checkpoint, ascending.
std::vector<int64_t> named_steps(const std::string& root) {
  std::vector<int64_t> steps;
  for (const auto& name : list_directory(root)) {
    const auto step = step_of(name);
    if (step && checkpoint_name(*step) == name) {
      steps.push_back(*step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace

std::string fault_of(const std::string& directory) {
  try {
    for (const auto& file : read_manifest(directory).files) {
      const std::string path = c10::str(directory, "/", file.name);
      const int64_t length = file_length(path);
      if (length != file.bytes) {
        return length < 0
                   ? path + (is_there(path) ? ": it is no regular file" : ": it does not exist")
                   : c10::str(path, ": it has ", length, " bytes, but the manifest says ",
                              file.bytes);
      }
    }
    return "";
  } catch (const c10::Error& error) {
    return comm::reason_of(error);
  }
}

std::string checkpoint_name(int64_t step) {
  TORCH_CHECK_VALUE(step >= 0, "the step of a checkpoint is ", step, ", but must not be negative");
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%s%08lld", kPrefix, static_cast<long long>(step));
  return text.data();
}

std::vector<int64_t> list_checkpoints(const std::string& root) {
  auto steps = named_steps(root);
  std::erase_if(
      steps, [&](int64_t step) { return !fault_of(root + "/" + checkpoint_name(step)).empty(); });
  return steps;
}

std::optional<std::string> latest_checkpoint(const std::string& root) {
  const auto steps = named_steps(root);
  std::string faults;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    std::string directory = c10::str(root, "/", checkpoint_name(*step));
    const std::string fault = fault_of(directory);
    if (fault.empty()) {
      if (!faults.empty()) {
        TORCH_WARN(directory, " is the newest checkpoint that can be used; passed over:", faults);
      }
      return directory;
    }
    faults += "\n  " + fault;
  }
  TORCH_CHECK_VALUE(faults.empty(), root,
                    ": there are checkpoints, but none of them can be used:", faults,
                    "\n  mend them, or move them away to begin anew");
  return std::nullopt;
}

Staging::Staging(std::string root, int64_t step)
    : root_(std::move(root)), step_(step), path_(temporary_path(root_, step)) {}

void Staging::make() const {
  make_directories(root_);
  for (const auto& name : list_directory(root_)) {
    if (name.rfind(kTemporaryPrefix, 0) == 0) {
      remove_directory(c10::str(root_, "/", name));
    }
  }
  make_directory(path_);
}

void Staging::publish(const Manifest& manifest) const {
  OutputFile file(path_ + "/" + kManifestName);
  file.write(to_json(manifest));
  file.finish();
  sync_directory(path_);
  rename_directory(path_, root_ + "/" + checkpoint_name(step_));
  sync_directory(root_);
  // An older one of the same step has the temporary name now.
  if (is_there(path_)) {
    remove_directory(path_);
  }
}

int64_t Staging::written_bytes() const {
  int64_t bytes = 0;
  for (const auto& name : list_directory(path_)) {
    bytes += std::max<int64_t>(file_length(c10::str(path_, "/", name)), 0);
  }
  return bytes;
}

void Staging::discard() const noexcept {
  try {
    if (is_directory(path_)) {
      remove_directory(path_);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // The next save tries again; readers pass over it.
  }
}

void prune(const std::string& root, int64_t keep, int64_t newest) {
  auto steps = keep > 0 ? list_checkpoints(root) : std::vector<int64_t>();
  // Later ones are of a run that went further, before somebody went back.
  std::erase_if(steps, [&](int64_t step) { return step > newest; });
  for (size_t i = 0; static_cast<int64_t>(i) + keep < static_cast<int64_t>(steps.size()); ++i) {
    // Under a temporary name, so that nobody takes one that is half removed for a whole one.
    const std::string doomed = temporary_path(root, steps[i]);
    rename_directory(c10::str(root, "/", checkpoint_name(steps[i])), doomed);
    remove_directory(doomed);
  }
}

Manifest read_manifest(const std::string& directory) {
  const std::string path = directory + "/" + kManifestName;
  return parse_manifest(read_file(path, kMaxManifestBytes), path);
}

}  // namespace fairshard::store

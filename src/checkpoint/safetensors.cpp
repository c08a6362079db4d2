#include <fairshard/checkpoint/safetensors.h>
#include <fairshard/store/model_files.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace fairshard {
namespace {

/// Something of a module that a file has, by its name there.
struct Entry {
  std::string name;
  at::Tensor tensor;
  /// Whether an earlier one is the same tensor.
  bool is_tied = false;
};

std::vector<Entry> entries_of(const torch::nn::Module& module, const SafetensorsOptions& options) {
  std::vector<Entry> entries;
  std::set<std::string> names;
  const auto add = [&](const std::string& own, const at::Tensor& tensor) {
    const std::string name = options.name_in_file() ? options.name_in_file()(own) : own;
    if (!tensor.defined() || name.empty()) {
      return;
    }
    TORCH_CHECK_VALUE(names.insert(name).second, "name_in_file gives '", name, "' for '", own,
                      "' and for another one");
    const bool is_tied = std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.tensor.is_same(tensor);
    });
    entries.push_back({name, tensor, is_tied});
  };
  for (const auto& item : module.named_parameters()) {
    add(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    add(item.key(), item.value());
  }
  return entries;
}

bool is_same_kind(at::ScalarType a, at::ScalarType b) {
  return at::isFloatingType(a) == at::isFloatingType(b) &&
         at::isComplexType(a) == at::isComplexType(b);
}

std::string listed(const char* what, const std::vector<std::string>& names) {
  constexpr size_t kMost = 10;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return names.empty()
             ? ""
             : c10::str(
                   "\n  ", what, ": ", text,
                   names.size() > kMost ? c10::str(" and ", names.size() - kMost, " more") : "");
}

}  // namespace

store::LoadReport load_safetensors(torch::nn::Module& module, const std::string& path,
                                   const SafetensorsOptions& options) {
  const store::ModelFiles files(path);
  const auto entries = entries_of(module, options);
  store::LoadReport report;
  std::vector<std::string> misfits;
  std::vector<const Entry*> found;
  std::set<std::string> expected;
  for (const Entry& entry : entries) {
    expected.insert(entry.name);
    const store::StoredTensor* const stored = files.find(entry.name);
    if (!stored) {
      continue;
    }
    found.push_back(&entry);
    if (entry.tensor.sizes() != at::IntArrayRef(stored->sizes)) {
      misfits.push_back(c10::str("'", entry.name, "' has sizes ", at::IntArrayRef(stored->sizes),
                                 ", but ", entry.tensor.sizes(), " is wanted"));
    } else if (!is_same_kind(stored->dtype, entry.tensor.scalar_type())) {
      misfits.push_back(c10::str("'", entry.name, "' is ", stored->dtype, ", but ",
                                 entry.tensor.scalar_type(), " is wanted"));
    }
  }
  for (const Entry& entry : entries) {
    const bool is_found = std::any_of(found.begin(), found.end(), [&](const Entry* other) {
      return other->tensor.is_same(entry.tensor);
    });
    if (!is_found) {
      report.missing.push_back(entry.name);
    }
  }
  for (const std::string& name : files.names()) {
    if (!expected.contains(name)) {
      report.unexpected.push_back(name);
    }
  }
  const bool fits = misfits.empty() &&
                    (!options.strict() || (report.missing.empty() && report.unexpected.empty()));
  TORCH_CHECK_VALUE(fits, path, " does not fit the module:", listed("missing", report.missing),
                    listed("unexpected", report.unexpected), listed("misfits", misfits));
  const at::NoGradGuard no_grad;
  for (const Entry* entry : found) {
    at::Tensor(entry->tensor).copy_(files.read(entry->name));
  }
  return report;
}

void save_safetensors(const torch::nn::Module& module, const std::string& file,
                      const SafetensorsOptions& options) {
  std::vector<store::TensorToWrite> tensors;
  for (const Entry& entry : entries_of(module, options)) {
    if (!entry.is_tied) {
      tensors.push_back({entry.name, entry.tensor.scalar_type(), entry.tensor.sizes().vec(),
                         [tensor = entry.tensor.detach()] {
                           return tensor.resolve_conj().resolve_neg().contiguous();
                         }});
    }
  }
  TORCH_CHECK_VALUE(!tensors.empty(), "the module has nothing to write to ", file);
  store::write_model_files(file, tensors, options.max_file_bytes());
}

}  // namespace fairshard

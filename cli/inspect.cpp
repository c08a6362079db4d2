// fairshard inspect: what a checkpoint holds, as a table.
#include "commands.h"
#include "folders.h"
#include "readable.h"
#include "table.h"
#include <fairshard/comm/reason.h>
#include <fairshard/store/directory.h>
#include <fairshard/store/reader.h>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace fairshard::cli {
namespace {

std::string listed(const std::vector<int64_t>& numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(numbers[i]);
  }
  return text + "]";
}

/// Which elements are in the files of which ranks.
std::string ranges(const store::StoredEntry& entry) {
  std::string text;
  for (const auto& range : entry.ranges) {
    text += (text.empty() ? "" : " ") + std::to_string(range.file) + ":" +
            std::to_string(range.begin) + "-" + std::to_string(range.end);
  }
  return text;
}

/// Why a tensor cannot be read, or nothing.
std::string fault_of_tensor(store::Reader& reader, const std::string& key) {
  try {
    reader.read(key);
    return "";
  } catch (const c10::Error& error) {
    return comm::reason_of(error);
  }
}

void inspect(const std::string& directory, bool verify) {
  store::Reader reader(directory);
  const auto& manifest = reader.manifest();
  const std::string file_fault = store::fault_of(directory);
  std::string faults = file_fault.empty() ? "" : "\n  " + file_fault;
  std::vector<Row> rows{{"tensor", "dtype", "shape", "size", "rank:elements"}};
  int64_t total = 0;
  for (const auto& [key, entry] : manifest.tensors) {
    const int64_t bytes =
        entry.layout.numel() * static_cast<int64_t>(c10::elementSize(entry.layout.dtype));
    total += bytes;
    rows.push_back({key, store::dtype_name(entry.layout.dtype), listed(entry.layout.sizes),
                    readable_bytes(static_cast<double>(bytes)), ranges(entry)});
    const std::string fault = verify ? fault_of_tensor(reader, key) : "";
    faults += fault.empty() ? "" : "\n  " + fault;
  }
  std::cout << directory << ": step " << manifest.step << ", " << manifest.world_size
            << " rank(s), " << manifest.tensors.size() << " tensors, "
            << readable_bytes(static_cast<double>(total))
            << (verify && faults.empty() ? ", all checksums are good" : "") << "\n\n";
  print_table(rows, std::cout);
  std::cout << "\n";
  for (const auto& [key, value] : manifest.values) {
    std::cout << key << " = " << value << "\n";
  }
  std::cout << std::flush;
  TORCH_CHECK_VALUE(faults.empty(), directory, " cannot be used:", faults);
}

}  // namespace

void add_inspect(CLI::App& app) {
  struct Options {
    std::string folder;
    bool verify = false;
  };
  const auto options = std::make_shared<Options>();
  auto* const command = app.add_subcommand("inspect", "Lists what a checkpoint holds.");
  command->add_option("DIR", options->folder, "a checkpoint, or a folder of them (then the newest)")
      ->required();
  command->add_flag("--verify", options->verify, "read everything and compare the checksums");
  command->callback([options] { inspect(find_checkpoint(options->folder), options->verify); });
}

}  // namespace fairshard::cli

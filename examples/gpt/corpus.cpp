#include "gpt/corpus.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <random>
#include <string_view>
#include <system_error>

namespace gpt {
namespace {

namespace fs = std::filesystem;

bool is_text(const fs::path& file) {
  constexpr std::array<std::string_view, 7> kEndings = {".py", ".txt", ".md", ".rst",
                                                        ".h",  ".cpp", ".c"};
  return std::ranges::find(kEndings, file.extension().native()) != kEndings.end();
}

/// Packages come and go, and would change the text under a Python's library folder.
bool is_skipped_folder(const fs::path& folder) {
  const std::string name = folder.filename();
  return name == "site-packages" || name == "dist-packages" || name == "__pycache__";
}

std::vector<fs::path> find_texts(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  const fs::recursive_directory_iterator end;
  while (!error && entry != end) {
    if (!entry->is_symlink()) {
      if (entry->is_directory() && is_skipped_folder(entry->path())) {
        entry.disable_recursion_pending();
      } else if (entry->is_regular_file() && is_text(entry->path())) {
        files.push_back(entry->path());
      }
    }
    entry.increment(error);
  }
  TORCH_CHECK(!error, "the folder ", folder.native(), " cannot be read: ", error.message());
  // A folder's own order differs between machines.
  std::ranges::sort(files);
  return files;
}

/// Appends at most `max_bytes` of the file.
void append_file(const fs::path& file, int64_t max_bytes, std::string& text) {
  std::ifstream stream(file, std::ios::binary);
  std::error_code error;
  const auto size = static_cast<int64_t>(fs::file_size(file, error));
  TORCH_CHECK(stream.is_open() && !error, "the text ", file.native(), " cannot be opened: ",
              error ? error.message() : std::generic_category().message(errno));
  const auto wanted = std::min(size, max_bytes);
  const auto before = text.size();
  text.resize(before + static_cast<size_t>(wanted));
  stream.read(text.data() + before, wanted);
  TORCH_CHECK(stream.gcount() == wanted, "the text ", file.native(), " ended after ",
              stream.gcount(), " of ", wanted, " bytes");
}

std::string read_text(const fs::path& path, int64_t max_bytes) {
  std::error_code error;
  const auto status = fs::status(path, error);
  TORCH_CHECK(fs::exists(status), "there is no file or folder ", path.native());
  TORCH_CHECK(fs::is_regular_file(status) || fs::is_directory(status), path.native(),
              " is neither a file nor a folder");
  std::string text;
  if (fs::is_regular_file(status)) {
    append_file(path, max_bytes, text);
    return text;
  }
  for (const auto& file : find_texts(path)) {
    const auto left = max_bytes - static_cast<int64_t>(text.size());
    if (left <= 0) {
      break;
    }
    append_file(file, left, text);
  }
  return text;
}

std::mt19937_64 make_generator(const DrawKey& key) {
  const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
  const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
  const auto step = static_cast<uint64_t>(key.step);
  std::seed_seq words{low(key.seed), high(key.seed), static_cast<uint32_t>(key.rank), low(step),
                      high(step)};
  return std::mt19937_64(words);
}

}  // namespace

Corpus::Corpus(const fs::path& path, const CorpusOptions& options)
    : options_(options), text_(read_text(path, options.max_bytes())) {
  TORCH_CHECK_VALUE(options.context() > 0, "CorpusOptions: context is ", options.context(),
                    ", but must be positive");
  const auto size = static_cast<int64_t>(text_.size());
  const auto window = options.context() + 1;
  const auto held_out = std::max(size / 20, window);
  TORCH_CHECK(size - held_out >= window, path.native(), " has ", size,
              " bytes of text, but a context of ", options.context(), " needs at least ",
              2 * window, ": a window to train on and one to hold out");
  training_bytes_ = size - held_out;
}

Batch Corpus::sample(int64_t windows, const DrawKey& key) const {
  auto generator = make_generator(key);
  const auto choices = static_cast<uint64_t>(training_bytes_ - options_.context());
  std::vector<int64_t> starts(static_cast<size_t>(windows));
  // Not a std::uniform_int_distribution, which differs between standard libraries; with 64 bits
  // the remainder is as good as uniform.
  std::ranges::generate(starts, [&] { return static_cast<int64_t>(generator() % choices); });
  return cut(starts);
}

Batch Corpus::held_out(const std::vector<int64_t>& numbers, int64_t total) const {
  const auto last_start = held_out_bytes() - options_.context() - 1;
  std::vector<int64_t> starts;
  for (const int64_t number : numbers) {
    TORCH_CHECK_INDEX(0 <= number && number < total, "held_out: window ", number, " of ", total);
    starts.push_back(training_bytes_ + number * last_start / std::max<int64_t>(total - 1, 1));
  }
  return cut(starts);
}

Batch Corpus::cut(const std::vector<int64_t>& starts) const {
  const auto windows = static_cast<int64_t>(starts.size());
  const auto context = options_.context();
  Batch batch{at::empty({windows, context}, at::kLong), at::empty({windows, context}, at::kLong)};
  auto* token = batch.tokens.mutable_data_ptr<int64_t>();
  auto* target = batch.targets.mutable_data_ptr<int64_t>();
  for (const int64_t start : starts) {
    for (auto at = static_cast<size_t>(start); at < static_cast<size_t>(start + context); ++at) {
      *token++ = static_cast<unsigned char>(text_[at]);
      *target++ = static_cast<unsigned char>(text_[at + 1]);
    }
  }
  return batch;
}

}  // namespace gpt

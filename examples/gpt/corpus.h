#pragma once
// The text that is trained on: bytes of a file or a folder, cut into a training and a held-out
// part.

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace gpt {

struct CorpusOptions {
  /// Bytes per window.
  TORCH_ARG(int64_t, context) = 128;
  /// Text beyond this many bytes is left out.
  TORCH_ARG(int64_t, max_bytes) = int64_t{16} << 20;
};

/// int64 tensors {windows, context}; a target is the byte after its token.
struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

/// Says which random windows are drawn: each combination gives others, and always the same.
struct DrawKey {
  uint64_t seed = 0;
  int rank = 0;
  int64_t step = 0;
};

/// A text in memory; the last 5 % are held out. All is local: ranks that read the same path have
/// the same text.
class Corpus {
 public:
  /// Reads a file, or all source and text files under a folder in the order of their paths, without
  /// following links and without installed Python packages. Throws c10::Error that names the path
  /// if it is missing or unreadable, or has too little text for a window in both parts.
  explicit Corpus(const std::filesystem::path& path, const CorpusOptions& options = {});

  int64_t training_bytes() const { return training_bytes_; }
  int64_t held_out_bytes() const { return static_cast<int64_t>(text_.size()) - training_bytes_; }

  /// Random windows of the training part.
  Batch sample(int64_t windows, const DrawKey& key) const;

  /// Some of `total` windows that lie evenly over the held-out part, by their numbers.
  Batch held_out(const std::vector<int64_t>& numbers, int64_t total) const;

 private:
  Batch cut(const std::vector<int64_t>& starts) const;

  CorpusOptions options_;
  std::string text_;
  int64_t training_bytes_ = 0;
};

}  // namespace gpt

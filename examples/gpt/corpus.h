#pragma once
// The text that is trained on: bytes of a file or a folder, cut into a training and a held-out
// part.

#include "gpt/mapped_text.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace gpt {

/// int64 tensors {windows, context}; a target is the byte after its token.
struct Batch {
  at::Tensor tokens;
  at::Tensor targets;
};

/// Says which random windows are drawn: each combination gives others, and always the same.
struct DrawKey {
  uint64_t seed = 0;
  int64_t step = 0;
};

/// A text that is mapped into memory; the last 5 % are held out. All is local: ranks that read the
/// same path have the same text. May be used by several threads.
class Corpus {
 public:
  /// Windows of `context` bytes of a file or folder (see MappedText). Throws c10::Error that names
  /// the path if there is too little text for a window in both parts.
  Corpus(const std::filesystem::path& path, int64_t context);

  int64_t training_bytes() const { return training_bytes_; }
  int64_t held_out_bytes() const { return text_.size() - training_bytes_; }

  /// Random windows of the training part: numbers `first` to `first + windows` of the batch that
  /// the key has. So any division among ranks gives the same batch.
  Batch sample(int64_t first, int64_t windows, const DrawKey& key) const;

  /// Some of `total` windows that lie evenly over the held-out part, by their numbers.
  Batch held_out(const std::vector<int64_t>& numbers, int64_t total) const;

 private:
  Batch cut(const std::vector<int64_t>& starts) const;

  MappedText text_;
  int64_t context_;
  int64_t training_bytes_ = 0;
};

}  // namespace gpt

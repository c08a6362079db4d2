#pragma once
// What a model is trained on: a text as tokens in a file, cut into windows.

#include <fairshard/store/safetensors.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fairshard::models {

/// Windows of a file that is mapped into memory and never read whole: a safetensors file with a
/// one-dimensional tensor "tokens" of uint16, uint32, int32 or int64, which
/// `python -m fairshard.tokenize` writes. Local; may be used by several threads.
///
///   TokenWindows windows("tokens.safetensors", 2048);
///   ResumableSampler sampler(group, windows.size(), SamplerOptions().batch(64));
///   at::Tensor tokens = windows.batch(sampler.next());
class TokenWindows {
 public:
  /// Of `length` tokens, one after another; what makes no whole window at the end is left out.
  /// Throws c10::ValueError that names the file if it has no tokens, or too few for a window.
  TokenWindows(const std::string& file, int64_t length);

  /// How many there are.
  int64_t size() const { return size_; }
  /// What the file says of its tokens: "vocab_size", "end_token" and "tokenizer_crc32", if it was
  /// written by fairshard.tokenize.
  const store::Metadata& metadata() const { return file_.header().metadata; }
  /// int64 {numbers, length}.
  at::Tensor batch(const std::vector<size_t>& numbers) const;

 private:
  store::SafetensorsFile file_;
  int64_t length_;
  int64_t size_ = 0;
};

}  // namespace fairshard::models

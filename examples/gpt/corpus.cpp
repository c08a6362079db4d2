#include "gpt/corpus.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <random>

namespace gpt {
namespace {

std::mt19937_64 make_generator(const DrawKey& key) {
  const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
  const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
  const auto step = static_cast<uint64_t>(key.step);
  std::seed_seq words{low(key.seed), high(key.seed), low(step), high(step)};
  return std::mt19937_64(words);
}

}  // namespace

Corpus::Corpus(const std::filesystem::path& path, int64_t context)
    : text_(path), context_(context) {
  TORCH_CHECK_VALUE(context > 0, "Corpus: context is ", context, ", but must be positive");
  const auto window = context + 1;
  const auto held_out = std::max(text_.size() / 20, window);
  TORCH_CHECK(text_.size() - held_out >= window, path.native(), " has ", text_.size(),
              " bytes of text, but a context of ", context, " needs at least ", 2 * window,
              ": a window to train on and one to hold out");
  training_bytes_ = text_.size() - held_out;
}

Batch Corpus::sample(int64_t first, int64_t windows, const DrawKey& key) const {
  auto generator = make_generator(key);
  generator.discard(static_cast<unsigned long long>(first));
  const auto choices = static_cast<uint64_t>(training_bytes_ - context_);
  std::vector<int64_t> starts(static_cast<size_t>(windows));
  // Not a std::uniform_int_distribution, which differs between standard libraries; with 64 bits
  // the remainder is as good as uniform.
  std::ranges::generate(starts, [&] { return static_cast<int64_t>(generator() % choices); });
  return cut(starts);
}

Batch Corpus::held_out(const std::vector<int64_t>& numbers, int64_t total) const {
  const auto last_start = held_out_bytes() - context_ - 1;
  std::vector<int64_t> starts;
  for (const int64_t number : numbers) {
    TORCH_CHECK_INDEX(0 <= number && number < total, "held_out: window ", number, " of ", total);
    starts.push_back(training_bytes_ + number * last_start / std::max<int64_t>(total - 1, 1));
  }
  return cut(starts);
}

Batch Corpus::cut(const std::vector<int64_t>& starts) const {
  const auto windows = static_cast<int64_t>(starts.size());
  Batch batch{at::empty({windows, context_}, at::kLong), at::empty({windows, context_}, at::kLong)};
  auto* token = batch.tokens.mutable_data_ptr<int64_t>();
  auto* target = batch.targets.mutable_data_ptr<int64_t>();
  std::vector<unsigned char> bytes(static_cast<size_t>(context_ + 1));
  for (const int64_t start : starts) {
    text_.copy(start, context_ + 1, bytes.data());
    token = std::copy(bytes.begin(), bytes.end() - 1, token);
    target = std::copy(bytes.begin() + 1, bytes.end(), target);
  }
  return batch;
}

}  // namespace gpt

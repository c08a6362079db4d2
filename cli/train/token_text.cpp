// A file of tokens that `python -m fairshard.tokenize` has written.
#include "training_text.h"
#include <fairshard/data/resumable_sampler.h>
#include <fairshard/models/tokens.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>

namespace fairshard::cli::training {
namespace {

constexpr int64_t kMostHeldOutWindows = 256;
constexpr int64_t kHeldOutPart = 20;

/// As zlib has it, which Python's standard library uses.
uint32_t crc32_of(const std::string& bytes) {
  constexpr uint32_t kPolynomial = 0xEDB88320U;
  constexpr int kBits = 8;
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < kBits; ++bit) {
      value = (value >> 1) ^ ((value & 1) != 0 ? kPolynomial : 0);
    }
    table[i] = value;
  }
  uint32_t sum = ~0U;
  for (const char byte : bytes) {
    sum = (sum >> kBits) ^ table[(sum ^ static_cast<unsigned char>(byte)) & 0xFF];
  }
  return ~sum;
}

/// Empty if there is no such file.
std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// Files of other programs may say nothing of their tokenizer.
void check_tokenizer(const store::Metadata& metadata, const std::string& file,
                     const HubFolder& hub) {
  if (const auto found = metadata.find("vocab_size"); found != metadata.end()) {
    TORCH_CHECK_VALUE(std::atoll(found->second.c_str()) <= hub.config.vocab_size, file,
                      " has tokens of a tokenizer with ", found->second, " tokens, but the model ",
                      hub.folder, " has a vocab_size of ", hub.config.vocab_size);
  }
  const std::string tokenizer = contents_of(hub.folder + "/tokenizer.json");
  const auto found = metadata.find("tokenizer_crc32");
  if (found != metadata.end() && !tokenizer.empty()) {
    TORCH_CHECK_VALUE(found->second == std::to_string(crc32_of(tokenizer)), file,
                      " was written with another tokenizer than ", hub.folder,
                      "/tokenizer.json: write it again with `python -m fairshard.tokenize`");
  }
}

/// Windows of the first part are shuffled anew in each epoch; those of the last part are held out.
class TokenText final : public TrainingText {
 public:
  TokenText(const TrainOptions& options, const HubFolder& hub)
      : file_(options.data),
        vocabulary_(hub.config.vocab_size),
        windows_(options.data, options.context()),
        held_out_(std::max<int64_t>(windows_.size() / kHeldOutPart, 1)),
        batch_(options.batch) {
    check_tokenizer(windows_.metadata(), file_, hub);
    TORCH_CHECK_VALUE(training_windows() >= batch_, file_, " has ", windows_.size(),
                      " windows of --context ", options.context(), " tokens, and ", held_out_,
                      " of them held out, but a --batch has ", batch_);
    sampler_.emplace(training_windows(), SamplerOptions().batch(batch_).seed(options.seed));
  }

  gpt::Batch sample(int64_t first, int64_t windows, int64_t step) const override {
    const auto numbers = batch_of(step);
    return cut({numbers.begin() + first, numbers.begin() + first + windows});
  }
  int64_t held_out_windows() const override {
    return std::min<int64_t>(held_out_, kMostHeldOutWindows);
  }
  gpt::Batch held_out(const std::vector<int64_t>& numbers) const override {
    std::vector<size_t> places;
    for (const int64_t number : numbers) {
      places.push_back(
          static_cast<size_t>(training_windows() + number * held_out_ / held_out_windows()));
    }
    return cut(places);
  }

 private:
  int64_t training_windows() const { return windows_.size() - held_out_; }

  /// What is left at the end of an epoch and makes no whole batch is left out.
  std::vector<size_t> batch_of(int64_t step) const {
    const int64_t steps_per_epoch = training_windows() / batch_;
    const int64_t done = step - 1;
    const std::lock_guard lock(mutex_);
    sampler_->go_to(done / steps_per_epoch, done % steps_per_epoch * batch_);
    return sampler_->next();
  }

  gpt::Batch cut(const std::vector<size_t>& numbers) const {
    const at::Tensor tokens = windows_.batch(numbers);
    // The model would see it, too, but not on a GPU, and without the file's name.
    const auto most = tokens.max().item<int64_t>(), least = tokens.min().item<int64_t>();
    TORCH_CHECK_VALUE(0 <= least && most < vocabulary_, file_, " has a token ",
                      least < 0 ? least : most, ", but the model's vocab_size is ", vocabulary_);
    return {tokens, tokens};
  }

  std::string file_;
  int64_t vocabulary_;
  models::TokenWindows windows_;
  int64_t held_out_;
  int64_t batch_;
  mutable std::mutex mutex_;
  /// Keeps the order of an epoch.
  mutable std::optional<ResumableSampler> sampler_;
};

}  // namespace

std::unique_ptr<TrainingText> open_tokens(const TrainOptions& options) {
  TORCH_CHECK_VALUE(options.hub, options.data,
                    " has tokens, not text: --model says which model they are for");
  return std::make_unique<TokenText>(options, *options.hub);
}

}  // namespace fairshard::cli::training

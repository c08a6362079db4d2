// Text without a tokenizer: each byte is a token.
#include "training_text.h"

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

namespace fairshard::cli::training {
namespace {

constexpr int64_t kHeldOutWindows = 256;
constexpr int64_t kBytes = 256;

class ByteText final : public TrainingText {
 public:
  /// `has_labels`: targets are the tokens themselves, which a model then predicts from those before
  /// them.
  ByteText(const TrainOptions& options, bool has_labels)
      : corpus_(options.data, options.context() - (has_labels ? 1 : 0)),
        seed_(options.seed),
        has_labels_(has_labels) {}

  gpt::Batch sample(int64_t first, int64_t windows, int64_t step) const override {
    return labelled(corpus_.sample(first, windows, {seed_, step}));
  }
  int64_t held_out_windows() const override { return kHeldOutWindows; }
  gpt::Batch held_out(const std::vector<int64_t>& numbers) const override {
    return labelled(corpus_.held_out(numbers, kHeldOutWindows));
  }

 private:
  gpt::Batch labelled(gpt::Batch batch) const {
    if (!has_labels_) {
      return batch;
    }
    const at::Tensor whole = at::cat({batch.tokens, batch.targets.slice(1, -1)}, 1);
    return {whole, whole};
  }

  gpt::Corpus corpus_;
  uint64_t seed_;
  bool has_labels_;
};

}  // namespace

std::unique_ptr<TrainingText> open_bytes(const TrainOptions& options) {
  if (options.hub) {
    const int64_t vocabulary = options.hub->config.vocab_size;
    TORCH_CHECK_VALUE(vocabulary >= kBytes, options.data, " is read as bytes, but the model ",
                      options.hub->folder, " has a vocab_size of ", vocabulary, ", less than ",
                      kBytes, ": `python -m fairshard.tokenize` makes a file of its tokens");
  }
  return std::make_unique<ByteText>(options, options.hub.has_value());
}

}  // namespace fairshard::cli::training

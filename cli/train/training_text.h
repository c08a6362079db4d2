#pragma once
// The text that is trained on, cut into windows of tokens: the same for any number of ranks.

#include "gpt/corpus.h"
#include "options.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace fairshard::cli::training {

/// All is local: ranks that read the same path have the same text. May be used by several threads.
class TrainingText {
 public:
  virtual ~TrainingText() = default;

  /// Numbers `first` to `first + windows` of the batch of a step, which follows from the seed.
  virtual gpt::Batch sample(int64_t first, int64_t windows, int64_t step) const = 0;
  /// How many windows the validation loss is taken of.
  virtual int64_t held_out_windows() const = 0;
  /// Some of these, by their numbers.
  virtual gpt::Batch held_out(const std::vector<int64_t>& numbers) const = 0;
};

/// What --data names, with the targets that the run's model takes. Throws with the path if it is
/// not for this model, or too short.
std::unique_ptr<TrainingText> open_text(const TrainOptions& options);

// The kinds that there are, one file each.

std::unique_ptr<TrainingText> open_bytes(const TrainOptions& options);
std::unique_ptr<TrainingText> open_tokens(const TrainOptions& options);

/// Whether a file has tokens, and not text: by its name.
bool is_token_file(const std::string& path);

}  // namespace fairshard::cli::training

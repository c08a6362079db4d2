#pragma once
// Batches, prepared by a thread of their own while others are computed with.

#include "training_text.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace fairshard::cli::training {

/// Which windows of a step's batch are whose. The batch of a step depends on the text and the step
/// alone; each rank has an even range of it, in order, and each of its parts an even range of that.
struct BatchShare {
  int64_t batch = 1;
  int64_t accumulate = 1;
  int rank = 0;
  int ranks = 1;

  int64_t windows_per_part() const { return batch / (accumulate * ranks); }
};

class BatchSource {
 public:
  /// From the batch of step `first` on. The text must live as long as this.
  BatchSource(const TrainingText& text, const BatchShare& share, int64_t first);
  ~BatchSource();
  BatchSource(const BatchSource&) = delete;
  BatchSource& operator=(const BatchSource&) = delete;

  /// This rank's parts of the next step's batch. Throws what reading the text has met.
  std::vector<gpt::Batch> next();

 private:
  void run(int64_t step);
  std::vector<gpt::Batch> prepare(int64_t step) const;

  const TrainingText& text_;
  BatchShare share_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::vector<gpt::Batch>> ready_;
  std::exception_ptr error_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace fairshard::cli::training

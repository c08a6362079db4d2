#pragma once
// data/ says which samples a rank reads.

#include <fairshard/comm/group.h>

#include <torch/arg.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace fairshard {

/// What a ResumableSampler is made with.
struct SamplerOptions {
  // Behaviour
  /// Samples per step, of all ranks together: a multiple of their number.
  TORCH_ARG(int64_t, batch) = 1;
  /// Each epoch has an order of its own, which follows from the seed. Off: as they are numbered.
  TORCH_ARG(bool, shuffle) = true;
  /// Of the orders; the same on all ranks.
  TORCH_ARG(uint64_t, seed) = 0;
};

/// Deals out the samples of a dataset, batch by batch: which samples make a batch depends on the
/// seed and the position alone, and each rank has an even range of them. So a run that was stopped
/// goes on with the next batch, with any number of ranks that divides it, and the batch may change,
/// too. What is left at the end of an epoch and makes no whole batch is left out. A Checkpoint
/// saves the position.
///
///   ResumableSampler sampler(group, dataset.size().value(), SamplerOptions().batch(64));
///   auto examples = dataset.get_batch(sampler.next());
class ResumableSampler {
 public:
  /// Of `samples` in all. Local.
  ResumableSampler(const comm::Group& group, int64_t samples, const SamplerOptions& options = {});
  /// For one process alone.
  explicit ResumableSampler(int64_t samples, const SamplerOptions& options = {});

  /// The numbers of this rank's samples of the next batch. Local; all ranks call it equally often.
  std::vector<size_t> next();

  /// The epoch of the next batch, from 0 on.
  int64_t epoch() const { return epoch_; }
  /// Samples of the epoch that all ranks together have read.
  int64_t position() const { return position_; }
  /// Goes there, for instance to where a checkpoint was.
  void go_to(int64_t epoch, int64_t position);

  /// How many there are in all.
  int64_t samples() const { return samples_; }
  /// What it was made with.
  const SamplerOptions& options() const { return options_; }
  /// The order of another run.
  void set_seed(uint64_t seed);

 private:
  ResumableSampler(int rank, int ranks, int64_t samples, const SamplerOptions& options);

  int rank_;
  int ranks_;
  int64_t samples_;
  SamplerOptions options_;
  int64_t epoch_ = 0;
  int64_t position_ = 0;
  /// The epoch whose order is known, and that order; empty if nothing is shuffled.
  std::optional<int64_t> ordered_epoch_;
  std::vector<int64_t> order_;
};

}  // namespace fairshard

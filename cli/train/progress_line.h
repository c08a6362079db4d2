#pragma once
// Shows how a training run is going: one line that rewrites itself, or a line now and then in a
// log.

#include <chrono>
#include <cstdint>

namespace fairshard::cli::training {

/// The clock starts when it is made. Local, and cheap on ranks that never call show().
class ProgressLine {
 public:
  /// `first` is the first step that is done now; earlier ones were done by a run before.
  /// Losses are per `token`, "byte" for instance.
  ProgressLine(int64_t first, int64_t steps, int64_t tokens_per_step, const char* token);

  /// Whether the line should be shown after this step. It is the same on every rank, so that ranks
  /// can gather what is shown.
  bool is_due(int64_t step) const;

  /// Writes to standard error. `loss` is in nats per token; `memory` is the most that a rank had.
  void show(int64_t step, double loss, int64_t memory) const;
  /// The line stays as it is, and others may be written.
  void leave() const;

  /// Over all ranks, since the clock started.
  double tokens_per_s(int64_t step) const;

 private:
  double elapsed_s() const;

  int64_t first_;
  int64_t steps_;
  int64_t tokens_per_step_;
  const char* token_;
  bool is_terminal_;
  mutable bool is_open_ = false;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace fairshard::cli::training

#pragma once
// One step of training, whatever the strategy is.

#include "batch_source.h"
#include "options.h"
#include "records.h"
#include "step_clock.h"
#include "strategy.h"
#include <fairshard/optim/adascale.h>
#include <fairshard/optim/grad_scaler.h>
#include <fairshard/optim/schedule.h>

#include <memory>
#include <optional>

namespace fairshard::cli::training {

/// Batch, forward, backward and step, with mixed precision, clipping and learning rates. All but
/// accessors is collective.
class Stepper {
 public:
  Stepper(const TrainOptions& options, Strategy& strategy, at::Device device, StepClock& clock);

  /// Does a step with the parts of its batch. Returns the loss, which may still be computed, and
  /// fills in what is known of the step.
  at::Tensor step(BatchSource& source, StepRecord& record);

  /// The mean loss of a batch that is not trained on, as a number.
  double evaluate(const gpt::Batch& batch);

  /// How much of the schedule is done, in steps: with AdaScale a step may be worth several.
  int64_t progress(int64_t steps_done) const;

  /// For checkpoints; nullptr without --amp fp16.
  ShardedGradScaler* scaler() { return scaler_ ? &*scaler_ : nullptr; }

 private:
  at::Tensor loss_of(const gpt::Batch& batch, bool trains);
  at::Tensor train_on(const std::vector<gpt::Batch>& parts);
  bool step_optimizer();
  void set_rate(double rate);

  const TrainOptions& options_;
  Strategy& strategy_;
  at::Device device_;
  StepClock& clock_;
  Schedule schedule_;
  AdaScaleBase* adascale_;
  std::optional<ShardedGradScaler> scaler_;
};

}  // namespace fairshard::cli::training

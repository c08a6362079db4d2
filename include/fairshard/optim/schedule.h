#pragma once
// Learning rates that change with the step, for any torch::optim optimizer.

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace fairshard {

/// What the learning rate is multiplied by at a step (from 0 on).
using Schedule = std::function<double(int64_t step)>;

/// The same at all steps.
Schedule constant_schedule(double factor = 1);
/// From 1 to `last` in `steps` steps, in a straight line, and `last` from then on.
Schedule linear_schedule(int64_t steps, double last = 0);
/// The same along half a cosine wave.
Schedule cosine_schedule(int64_t steps, double last = 0);
/// Multiplied by `factor` after every `every` steps.
Schedule step_schedule(int64_t every, double factor);
/// Rises in a straight line for `steps` steps (step 0 already has its part of 1), then `rest`
/// begins.
Schedule warmup_schedule(int64_t steps, Schedule rest = constant_schedule());
/// `first` for `steps` steps, then `rest`, whose own count begins there.
Schedule sequence_schedule(Schedule first, int64_t steps, Schedule rest);

/// Sets the learning rates of all of an optimizer's parameter groups: each group's own, as it is
/// now, times the schedule. An OSS is an optimizer too.
///
///   LearningRate rate(optimizer, warmup_schedule(100, cosine_schedule(900, 0.1)));
///   ... optimizer.step(); rate.step();
class LearningRate {
 public:
  /// Applies step 0. The optimizer must live as long as this.
  LearningRate(torch::optim::Optimizer& optimizer, Schedule schedule);

  /// Goes on to the next step. Call it after the optimizer's.
  void step();
  /// The step that it is at.
  int64_t steps() const { return step_; }
  /// Goes to a step, for instance one that a checkpoint has.
  void set_steps(int64_t steps);
  /// The rate of a group now.
  double rate(size_t group = 0) const;

 private:
  void apply();

  torch::optim::Optimizer& optimizer_;
  Schedule schedule_;
  std::vector<double> base_rates_;
  int64_t step_ = 0;
};

}  // namespace fairshard

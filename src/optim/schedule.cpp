#include <fairshard/optim/schedule.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace fairshard {
namespace {

void check_steps(int64_t steps, const char* schedule) {
  TORCH_CHECK_VALUE(steps >= 1, schedule, ": the number of steps is ", steps,
                    ", but must be at least 1");
}

double progress(int64_t step, int64_t steps) {
  return std::min(1.0, static_cast<double>(step) / static_cast<double>(steps));
}

}  // namespace

Schedule constant_schedule(double factor) {
  return [factor](int64_t) { return factor; };
}

Schedule linear_schedule(int64_t steps, double last) {
  check_steps(steps, "linear_schedule");
  return [=](int64_t step) { return 1 + (last - 1) * progress(step, steps); };
}

Schedule cosine_schedule(int64_t steps, double last) {
  check_steps(steps, "cosine_schedule");
  return [=](int64_t step) {
    return last + (1 - last) * (1 + std::cos(std::numbers::pi * progress(step, steps))) / 2;
  };
}

Schedule step_schedule(int64_t every, double factor) {
  check_steps(every, "step_schedule");
  return [=](int64_t step) {
    const int64_t times = step / every;
    return std::pow(factor, times);
  };
}

Schedule warmup_schedule(int64_t steps, Schedule rest) {
  check_steps(steps, "warmup_schedule");
  return sequence_schedule([steps](int64_t step) { return progress(step + 1, steps); }, steps,
                           std::move(rest));
}

Schedule sequence_schedule(Schedule first, int64_t steps, Schedule rest) {
  check_steps(steps, "sequence_schedule");
  return [first = std::move(first), steps, rest = std::move(rest)](int64_t step) {
    return step < steps ? first(step) : rest(step - steps);
  };
}

LearningRate::LearningRate(torch::optim::Optimizer& optimizer, Schedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)) {
  apply();
}

void LearningRate::step() { set_steps(step_ + 1); }

void LearningRate::set_steps(int64_t steps) {
  TORCH_CHECK_VALUE(steps >= 0, "LearningRate: the step is ", steps, ", but must not be negative");
  step_ = steps;
  apply();
}

double LearningRate::rate(size_t group) const {
  return optimizer_.param_groups().at(group).options().get_lr();
}

void LearningRate::apply() {
  auto& groups = optimizer_.param_groups();
  // New groups begin with the rate that they came with.
  for (size_t i = base_rates_.size(); i < groups.size(); ++i) {
    base_rates_.push_back(groups[i].options().get_lr());
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].options().set_lr(base_rates_[i] * schedule_(step_));
  }
}

}  // namespace fairshard

#include "one_step.h"

#include <fairshard/amp/autocast.h>

#include <algorithm>
#include <cmath>

namespace fairshard::cli::training {
namespace {

/// What comes after the warm-up, in so many steps.
Schedule falling(const TrainOptions& options, int64_t steps) {
  constexpr int64_t kPartOfFall = 5;
  if (options.schedule == "cosine") {
    return cosine_schedule(steps, options.final_lr);
  }
  if (options.schedule == "linear") {
    return linear_schedule(steps, options.final_lr);
  }
  if (options.schedule == "constant") {
    return constant_schedule();
  }
  const int64_t fall = std::max<int64_t>(steps / kPartOfFall, 1);
  const Schedule end = linear_schedule(fall, options.final_lr);
  return steps > fall ? sequence_schedule(constant_schedule(), steps - fall, end) : end;
}

Schedule make_schedule(const TrainOptions& options) {
  const int64_t warmup = options.warmup.value_or(std::clamp<int64_t>(options.steps / 10, 1, 100));
  const Schedule rest = falling(options, std::max<int64_t>(options.steps - warmup, 1));
  return warmup > 0 ? warmup_schedule(warmup, rest) : rest;
}

}  // namespace

Stepper::Stepper(const TrainOptions& options, Strategy& strategy, at::Device device,
                 StepClock& clock)
    : options_(options),
      strategy_(strategy),
      device_(device),
      clock_(clock),
      schedule_(make_schedule(options)),
      adascale_(dynamic_cast<AdaScaleBase*>(&strategy.optimizer())) {
  if (options.amp == "fp16") {
    scaler_.emplace(strategy.steppers());
  }
}

at::Tensor Stepper::loss_of(const gpt::Batch& batch, bool trains) {
  const bool is_mixed = !options_.amp.empty();
  const Autocast autocast(device_.type(), options_.amp == "fp16" ? at::kHalf : at::kBFloat16,
                          is_mixed);
  const at::Tensor tokens = batch.tokens.to(device_);
  const at::Tensor targets = batch.targets.to(device_);
  return trains ? strategy_.forward(tokens, targets) : strategy_.evaluate(tokens, targets);
}

double Stepper::evaluate(const gpt::Batch& batch) { return loss_of(batch, false).item<double>(); }

/// Losses are divided by the number of parts, so that gradients add up to their mean.
at::Tensor Stepper::train_on(const std::vector<gpt::Batch>& parts) {
  at::Tensor sum;
  for (size_t i = 0; i < parts.size(); ++i) {
    clock_.enter(Phase::kForward);
    const at::Tensor mean = loss_of(parts[i], true);
    const at::Tensor loss = parts.size() == 1 ? mean : mean / static_cast<double>(parts.size());
    clock_.enter(Phase::kBackward);
    strategy_.backward(scaler_ ? scaler_->scale(loss) : loss, i + 1 == parts.size());
    sum = sum.defined() ? sum + loss.detach() : loss.detach();
  }
  return sum;
}

bool Stepper::step_optimizer() {
  auto& optimizer = strategy_.optimizer();
  if (scaler_ && options_.clip > 0) {
    scaler_->unscale_(optimizer);
  }
  if (options_.clip > 0) {
    strategy_.clip(options_.clip);
  }
  if (!scaler_) {
    optimizer.step();
    return true;
  }
  const bool has_stepped = scaler_->step(optimizer);
  scaler_->update();
  return has_stepped;
}

void Stepper::set_rate(double rate) {
  for (auto& group : strategy_.optimizer().param_groups()) {
    group.options().set_lr(rate);
  }
}

int64_t Stepper::progress(int64_t steps_done) const {
  return adascale_ ? static_cast<int64_t>(adascale_->meter().effective_steps().item<double>())
                   : steps_done;
}

at::Tensor Stepper::step(BatchSource& source, StepRecord& record) {
  record.lr = options_.lr * schedule_(progress(record.step - 1));
  set_rate(record.lr);
  strategy_.zero_grad();
  clock_.enter(Phase::kData);
  const auto parts = source.next();
  const at::Tensor loss = train_on(parts);
  clock_.enter(Phase::kOptimizer);
  if (adascale_) {
    record.gain = adascale_->meter().gain().item<double>();
  }
  if (scaler_) {
    record.loss_scale = scaler_->get_scale();
  }
  record.is_skipped = !step_optimizer();
  strategy_.after_step();
  clock_.enter(Phase::kOther);
  return loss;
}

}  // namespace fairshard::cli::training

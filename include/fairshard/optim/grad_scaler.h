#pragma once
// ShardedGradScaler: gradients of low precision are kept in range, with one decision for all ranks.

#include <fairshard/comm/group.h>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <optional>
#include <unordered_map>

namespace fairshard {

/// What a ShardedGradScaler is made with; the names are those of torch.amp.GradScaler.
struct GradScalerOptions {
  // Behaviour
  /// What losses are multiplied by at first.
  TORCH_ARG(double, init_scale) = 65536;
  /// The scale is multiplied by this after `growth_interval` steps without an infinity ...
  TORCH_ARG(double, growth_factor) = 2;
  /// ... and by this after a step with one.
  TORCH_ARG(double, backoff_factor) = 0.5;
  /// See growth_factor.
  TORCH_ARG(int64_t, growth_interval) = 2000;
  /// If false, all of it does nothing but step.
  TORCH_ARG(bool, enabled) = true;
};

/// What torch.amp.GradScaler is in Python, for an OSS and for any torch::optim class. If a gradient
/// is infinite or not a number on any rank, all ranks skip the step, so that scales and parameters
/// stay the same everywhere. unscale_ and step are collective; ranks without gradients take part.
///
///   scaler.scale(loss).backward();
///   scaler.unscale_(optimizer);         // only if gradients are looked at or clipped
///   optimizer.clip_grad_norm(1.0);
///   scaler.step(optimizer);
///   scaler.update();
class ShardedGradScaler {
 public:
  /// `group`: who agrees on the steps of plain optimizers. An OSS brings its own.
  explicit ShardedGradScaler(comm::Group group, const GradScalerOptions& options = {});

  /// The loss times the scale. Local.
  at::Tensor scale(const at::Tensor& loss);
  /// Divides the optimizer's gradients by the scale, and finds out whether all are finite.
  // NOLINTNEXTLINE(readability-identifier-naming): its name in torch
  void unscale_(torch::optim::Optimizer& optimizer);
  /// Steps, unless a gradient is not finite. Unscales first, if that has not been done. Returns
  /// whether it has stepped.
  bool step(torch::optim::Optimizer& optimizer);
  /// Follows what the steps have found; or takes a new scale. Local.
  void update(std::optional<double> new_scale = std::nullopt);

  /// As torch's has them.
  /// @{
  double get_scale() const;
  double get_growth_factor() const { return options_.growth_factor(); }
  double get_backoff_factor() const { return options_.backoff_factor(); }
  int64_t get_growth_interval() const { return options_.growth_interval(); }
  bool is_enabled() const { return options_.enabled(); }
  /// @}
  /// Steps without an infinity since the scale was last changed.
  int64_t get_growth_tracker() const;
  /// Goes on from a scale and a number of steps, for instance those that a checkpoint has.
  void set_progress(double scale, int64_t growth_tracker);

  /// Scale and tracker, for torch's own archives.
  /// @{
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);
  /// @}

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct Progress {
    Stage stage = Stage::kReady;
    at::Tensor found_infinity;
  };

  comm::Group group_;
  GradScalerOptions options_;
  /// Under which gradients know this scaler.
  int64_t number_;
  at::Tensor scale_;
  at::Tensor steps_since_growth_;
  std::unordered_map<torch::optim::Optimizer*, Progress> optimizers_;
};

}  // namespace fairshard

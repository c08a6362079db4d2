#pragma once
// Measures the gain while backward runs, from each rank's own gradients and the reduced ones.

#include <fairshard/comm/group.h>
#include <fairshard/scale/running_gain.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace fairshard::scale {

/// What a GainMeter is made with.
struct GainMeterOptions {
  /// How many backward passes make up a step.
  TORCH_ARG(int64_t, accumulation) = 1;
  /// Whether each loss was divided by that number, so that gradients add up to their mean.
  TORCH_ARG(bool, is_scaled_loss) = true;
  /// See RunningGainOptions. If not given, ranks x accumulation.
  TORCH_ARG(std::optional<double>, scale);
  /// See RunningGainOptions.
  TORCH_ARG(std::optional<double>, smoothing);
  /// See RunningGainOptions.
  TORCH_ARG(bool, debias) = true;
};

/// Hooks on parameters take the square norm of every gradient as it arrives, before it is added to
/// others or reduced. At the end of the backward that completes a step, after whoever reduces
/// gradients has done so, the square norms of the reduced ones are taken, and one small all-reduce
/// brings both together. So the gain is known when backward returns, before gradients are clipped
/// or otherwise changed. That backward must be one that reduces, and none may run inside of it
/// (checkpointing of the reentrant kind). Gradients of a loss that a ShardedGradScaler has scaled
/// count unscaled.
///
/// A measurement that no step uses (for infinite gradients, or gradients thrown away) is forgotten
/// when the next backward begins.
class GainMeter {
 public:
  using Tensors = std::vector<at::Tensor>;
  /// Parameters with reduced gradients of theirs, or parts of those.
  using Gradients = std::vector<std::pair<at::Tensor, at::Tensor>>;

  /// `group`: the ranks between which gradients are averaged, or nothing if there is one process.
  GainMeter(std::optional<comm::Group> group, const std::vector<Tensors>& parameter_groups,
            const GainMeterOptions& options = {});
  ~GainMeter();
  GainMeter(const GainMeter&) = delete;
  GainMeter& operator=(const GainMeter&) = delete;

  void add_group(const Tensors& parameters);
  /// Which of the reduced gradients this rank is to measure. Without this, its share of those in
  /// .grad, which are then the same on all ranks.
  void measure_from(std::function<Gradients()> own_gradients);

  /// Throws unless there is a measurement that no step has used yet.
  void require_measurement() const;
  /// Uses it: the running means take it up, and a step of this gain is counted, if it is finite.
  /// Local.
  void count_step();
  /// Drops it, and the backward passes so far; what zero_grad means for them.
  void forget();

  /// Of each parameter group, and of all together; with the measurement, if there is one. Local.
  at::Tensor gains() const;
  at::Tensor gain() const;
  /// The sum of the gains of all steps: how many steps of a normal batch they are worth.
  at::Tensor effective_steps() const;

  double scale() const;
  double smoothing() const;
  void set_scale(double scale, bool updates_estimate = true);
  int64_t accumulation() const;
  /// A scale that was not given follows.
  void set_accumulation(int64_t accumulation);

  /// Running means (see RunningGain) and effective steps.
  std::pair<at::Tensor, at::Tensor> state() const;
  void load(const at::Tensor& means, const at::Tensor& effective_steps);

  /// Stops measuring.
  void unhook();

 private:
  class Hooks;
  std::shared_ptr<Hooks> hooks_;
};

}  // namespace fairshard::scale

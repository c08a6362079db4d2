#pragma once
// AdaScale: learning rates that follow what a large batch is worth.

#include <fairshard/optim/fused.h>
#include <fairshard/optim/oss.h>
#include <fairshard/scale/gain_meter.h>
#include <fairshard/shard/sharded_step.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

namespace fairshard {

/// What the gain does to the learning rate.
enum class AdaScaleRule {
  kSgd,   ///< multiplies it
  kAdam,  ///< its square root multiplies it: the step does not grow with the gradient
};

/// What an AdaScale is made with.
struct AdaScaleOptions {
  // Behaviour
  /// How the gain is measured.
  TORCH_ARG(scale::GainMeterOptions, gain);
  /// If not given, the class of the optimizer decides; see IsAdamLike.
  TORCH_ARG(std::optional<AdaScaleRule>, rule);
};

/// Whether steps of an optimizer class are about as long whatever the size of the gradients.
/// Specialise it for a class of your own.
template <typename Optimizer>
struct IsAdamLike : std::false_type {};
template <>
struct IsAdamLike<torch::optim::Adam> : std::bool_constant<shard::is_adam_like("Adam")> {};
template <>
struct IsAdamLike<torch::optim::AdamW> : std::bool_constant<shard::is_adam_like("AdamW")> {};
template <>
struct IsAdamLike<Adam> : std::bool_constant<shard::is_adam_like("Adam")> {};
template <>
struct IsAdamLike<AdamW> : std::bool_constant<shard::is_adam_like("AdamW")> {};
template <typename Base>
struct IsAdamLike<OSS<Base>> : IsAdamLike<Base> {};

/// What an AdaScale is whatever its optimizer is.
class AdaScaleBase {
 public:
  virtual ~AdaScaleBase() = default;
  /// What measures, for its state.
  virtual scale::GainMeter& meter() = 0;
};

namespace detail {

/// Learning rates times factors, one per parameter group, for as long as this lives.
class ScaledRates {
 public:
  ScaledRates(std::vector<torch::optim::OptimizerParamGroup>& groups, const at::Tensor& factors);
  ~ScaledRates();
  ScaledRates(const ScaledRates&) = delete;
  ScaledRates& operator=(const ScaledRates&) = delete;

 private:
  std::vector<torch::optim::OptimizerParamGroup>& groups_;
  std::vector<double> rates_;
};

/// Divides an optimizer's gradients, on this rank, by a number.
void divide_gradients(torch::optim::Optimizer& optimizer, double divisor);

}  // namespace detail

/// An optimizer of any class, also an OSS, whose step takes the learning rate times the gain (see
/// Note [Gain]). It is an optimizer of that class: a ShardedDataParallel, a ShardedGradScaler and a
/// LearningRate take it as such.
///
///   AdaScale<OSS<SGD>> optimizer(group, AdaScaleOptions(), group, *model, SGDOptions(0.1));
///   ShardedDataParallel parallel(group, model, optimizer);
///   loss_of(parallel.forward(input)).backward();   // the gain is measured here
///   optimizer.step();
///   rate.set_steps(optimizer.effective_steps());   // a schedule written for a normal batch
///
/// Gradients are never changed: over several backward passes per step they are means if the losses
/// were divided (GainMeterOptions::is_scaled_loss), and sums if not.
template <typename Optimizer>
class AdaScale : public Optimizer, public AdaScaleBase {
 public:
  /// `group`: the ranks between which gradients are averaged, or nothing if there is one process.
  /// The other arguments are those of `Optimizer`.
  template <typename... Arguments>
  AdaScale(std::optional<comm::Group> group, const AdaScaleOptions& options,
           Arguments&&... arguments)
      : Optimizer(std::forward<Arguments>(arguments)...),
        rule_(options.rule().value_or(IsAdamLike<Optimizer>::value ? AdaScaleRule::kAdam
                                                                   : AdaScaleRule::kSgd)),
        meter_(std::move(group), parameters_of(*this), options.gain()) {
    if constexpr (std::is_base_of_v<OssBase, Optimizer>) {
      meter_.measure_from([this] { return this->sharded_step().gradients_to_compare(); });
    }
  }
  AdaScale(const AdaScale&) = delete;
  AdaScale& operator=(const AdaScale&) = delete;

  /// Steps with the learning rates times the gains. Throws if no backward was measured since the
  /// last step.
  at::Tensor step(typename Optimizer::LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode grad(true);
      loss = closure();
    }
    meter_.require_measurement();
    {
      const at::Tensor gains = meter_.gains();
      const detail::ScaledRates rates(this->param_groups(),
                                      rule_ == AdaScaleRule::kAdam ? gains.sqrt() : gains);
      Optimizer::step();
    }
    meter_.count_step();
    return loss;
  }

  /// The optimizer's own; backward passes that no step has used count no longer.
  void zero_grad(bool set_to_none = true) {
    Optimizer::zero_grad(set_to_none);
    meter_.forget();
  }

  /// Adds a group, and measures its gain from now on.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    Optimizer::add_param_group(group);
    meter_.add_group(group.params());
  }

  /// Of one parameter group. On a GPU this waits for it.
  double gain(size_t group) const {
    return meter_.gains()[static_cast<int64_t>(group)].template item<double>();
  }
  /// Of all together. On a GPU this waits for it.
  double gain() const { return meter_.gain().template item<double>(); }
  /// How many steps of a normal batch the steps so far are worth, rounded down.
  int64_t effective_steps() const {
    return static_cast<int64_t>(std::floor(meter_.effective_steps().template item<double>()));
  }

  /// How many normal batches make up a step.
  double scale() const { return meter_.scale(); }
  /// How much of its running means a step keeps.
  double smoothing() const { return meter_.smoothing(); }
  /// Changes the scale. `update_estimate`: what a normal batch is has changed by it.
  void set_scale(double scale, bool update_estimate = true) {
    meter_.set_scale(scale, update_estimate);
  }
  /// Changes how many backward passes make up a step. A scale that was not given follows.
  void set_num_gradients_to_accumulate(int64_t number) { meter_.set_accumulation(number); }
  /// Makes means of gradients that are sums over several backward passes.
  void scale_grad_by_num_grads_to_accum() {
    detail::divide_gradients(*this, static_cast<double>(meter_.accumulation()));
  }
  /// Stops measuring; step() then throws.
  void unhook() { meter_.unhook(); }

  scale::GainMeter& meter() override { return meter_; }

  /// The optimizer's own, and what was measured.
  /// @{
  void save(torch::serialize::OutputArchive& archive) const override {
    Optimizer::save(archive);
    const auto [means, effective_steps] = meter_.state();
    archive.write("adascale_means", means);
    archive.write("adascale_effective_steps", effective_steps);
  }
  void load(torch::serialize::InputArchive& archive) override {
    Optimizer::load(archive);
    at::Tensor means;
    at::Tensor effective_steps;
    archive.read("adascale_means", means);
    archive.read("adascale_effective_steps", effective_steps);
    meter_.load(means, effective_steps);
  }
  /// @}

 private:
  static std::vector<std::vector<at::Tensor>> parameters_of(Optimizer& optimizer) {
    std::vector<std::vector<at::Tensor>> result;
    for (const auto& group : optimizer.param_groups()) {
      result.push_back(group.params());
    }
    return result;
  }

  AdaScaleRule rule_;
  scale::GainMeter meter_;
};

}  // namespace fairshard

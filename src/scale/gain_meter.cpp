#include "square_norm.h"
#include <fairshard/comm/collectives.h>
#include <fairshard/scale/gain_meter.h>
#include <fairshard/scale/scaled_backward.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace fairshard::scale {
namespace {

int64_t size_of(const std::optional<comm::Group>& group) { return group ? group->size() : 1; }

void check_accumulation(int64_t accumulation, int64_t ranks) {
  TORCH_CHECK_VALUE(accumulation >= 1, "the number of gradients to accumulate is ", accumulation,
                    ", but must be at least 1");
  TORCH_CHECK(accumulation * ranks > 1,
              "one rank that accumulates no gradients has nothing to compare, and so no gain: "
              "AdaScale needs several ranks, or several backward passes per step");
}

RunningGainOptions running_options(const GainMeterOptions& options, int64_t ranks) {
  const auto parts = static_cast<double>(ranks * options.accumulation());
  return RunningGainOptions()
      .scale(options.scale().value_or(parts))
      .smoothing(options.smoothing())
      .debias(options.debias());
}

}  // namespace

/// What the hooks hold on to, weakly.
class GainMeter::Hooks : public std::enable_shared_from_this<Hooks> {
 public:
  Hooks(std::optional<comm::Group> group, const GainMeterOptions& options)
      : group_(std::move(group)),
        options_(options),
        used_(0, running_options(options, size_of(group_))) {
    check_accumulation(options.accumulation(), size_of(group_));
  }

  ~Hooks() { unhook(); }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  void add_group(const Tensors& parameters) {
    const std::lock_guard lock(mutex_);
    const size_t number = sums_.size();
    used_.add_group();
    measured_.reset();
    sums_.emplace_back();
    for (const auto& parameter : parameters) {
      groups_[parameter.unsafeGetTensorImpl()] = number;
      parameters_.push_back(parameter);
      hook(parameter, number);
    }
  }

  void unhook() {
    for (const auto& [parameter, position] : hooked_) {
      parameter.remove_hook(position);
    }
    hooked_.clear();
  }

  void require_measurement() const {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(measured_, "a step needs ", options_.accumulation(),
                options_.accumulation() == 1 ? " backward pass" : " backward passes",
                " since the last one, but there were ", backwards_);
  }

  void count_step() {
    require_measurement();
    const std::lock_guard lock(mutex_);
    if (measured_) {
      used_ = std::move(*measured_);
      const at::Tensor gain = at::where(is_finite_, used_.gain(), 0.0);
      effective_steps_ = effective_steps_.to(gain.device()) + gain;
    }
    begin_step();
  }

  void forget() {
    const std::lock_guard lock(mutex_);
    begin_step();
  }

  void measure_from(std::function<Gradients()> own_gradients) {
    own_gradients_ = std::move(own_gradients);
  }

  RunningGain now() const {
    const std::lock_guard lock(mutex_);
    return measured_ ? *measured_ : used_;
  }
  at::Tensor effective_steps() const { return effective_steps_; }
  const RunningGain& used() const { return used_; }
  int64_t accumulation() const { return options_.accumulation(); }

  void set_scale(double scale, bool updates_estimate) {
    const std::lock_guard lock(mutex_);
    options_.scale(scale);
    used_.set_scale(scale, updates_estimate);
    if (measured_) {
      measured_->set_scale(scale, updates_estimate);
    }
  }

  void set_accumulation(int64_t accumulation) {
    const int64_t ranks = size_of(group_);
    check_accumulation(accumulation, ranks);
    const std::lock_guard lock(mutex_);
    if (!options_.scale()) {
      // One backward on one rank is a normal batch as before, so that the estimate stays.
      used_.set_scale(static_cast<double>(ranks * accumulation), false);
    } else {
      // As many normal batches are made up of another number of parts: see Note [Gain].
      used_.multiply_variances(static_cast<double>(options_.accumulation()) /
                               static_cast<double>(accumulation));
    }
    options_.accumulation(accumulation);
    begin_step();
  }

  void load(const at::Tensor& means, const at::Tensor& effective_steps) {
    const std::lock_guard lock(mutex_);
    used_.load(means);
    effective_steps_ = effective_steps.detach().to(at::kDouble).clone();
    begin_step();
  }

 private:
  void hook(const at::Tensor& parameter, size_t group) {
    if (!parameter.is_floating_point() && !parameter.is_complex()) {
      return;
    }
    // Frozen parameters may be unfrozen later; torch hooks only what requires a gradient.
    const bool is_trained = parameter.requires_grad();
    parameter.requires_grad_(true);
    const auto position =
        parameter.register_hook([self = weak_from_this(), group](const at::Tensor& gradient) {
          if (const auto hooks = self.lock()) {
            hooks->on_gradient(gradient, group);
          }
        });
    parameter.requires_grad_(is_trained);
    hooked_.emplace_back(parameter, position);
  }

  void begin_step() {
    backwards_ = 0;
    measured_.reset();
    sums_.assign(sums_.size(), at::Tensor());
  }

  void on_gradient(const at::Tensor& gradient, size_t group) {
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(mutex_);
    const int backward = torch::autograd::get_current_graph_task_id();
    if (std::exchange(backward_, backward) != backward) {
      if (backwards_ == 0 || backwards_ == options_.accumulation()) {
        begin_step();
      }
      arriving_.assign(sums_.size(), {});
      scale_ = scale_of_backward();
      when_backward_ends([](Hooks& hooks) { hooks.end_backward(); });
    }
    arriving_[group].push_back(square_norm(gradient));
  }

  template <typename Function>
  void when_backward_ends(Function function) {
    torch::autograd::Engine::get_default_engine().queue_callback(
        [self = weak_from_this(), function] {
          if (const auto hooks = self.lock()) {
            function(*hooks);
          }
        });
  }

  void end_backward() {
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < sums_.size(); ++i) {
      add(sums_[i], total(arriving_[i]));
    }
    arriving_.clear();
    if (++backwards_ == options_.accumulation()) {
      // Queued once more, to come after a reducer that has queued its own work in this backward.
      when_backward_ends([](Hooks& hooks) { hooks.measure(); });
    }
  }

  void measure() {
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(mutex_);
    std::vector<std::vector<at::Tensor>> means(sums_.size());
    // The same on all ranks, also on one that has no gradients.
    at::Device device = parameters_.empty() ? at::Device(at::kCPU) : parameters_[0].device();
    for (const auto& [parameter, gradient] : own_gradients_ ? own_gradients_() : share_of_grad()) {
      const auto found = groups_.find(parameter.unsafeGetTensorImpl());
      if (found != groups_.end()) {
        means[found->second].push_back(square_norm(gradient));
      }
      device = gradient.device();
    }
    for (const auto& sum : sums_) {
      device = sum.defined() ? sum.device() : device;
    }
    std::vector<at::Tensor> totals(means.size());
    std::transform(means.begin(), means.end(), totals.begin(), total);
    at::Tensor both = at::stack({joined(sums_, device), joined(totals, device)});
    if (group_) {
      comm::all_reduce(*group_, both, comm::ReduceOp::kSum, "square norms of gradients").wait();
    }
    if (scale_.defined()) {
      both /= scale_.to(device).to(at::kDouble).square();
    }
    const auto square = static_cast<double>(options_.accumulation() * options_.accumulation());
    if (options_.is_scaled_loss()) {
      both[0].mul_(square);  // of what the losses' gradients are before they are divided
    } else {
      both[1].div_(square);  // of the mean; the gradients add up to a sum
    }
    is_finite_ = both.isfinite().all();
    measured_ = used_.updated(both[0], both[1], size_of(group_) * options_.accumulation());
  }

  /// All ranks have the same gradients, and each measures some.
  Gradients share_of_grad() const {
    Gradients result;
    const size_t ranks = size_of(group_);
    for (size_t i = group_ ? group_->rank() : 0; i < parameters_.size(); i += ranks) {
      if (parameters_[i].grad().defined()) {
        result.emplace_back(parameters_[i], parameters_[i].grad());
      }
    }
    return result;
  }

  mutable std::mutex mutex_;
  std::optional<comm::Group> group_;
  GainMeterOptions options_;
  std::function<Gradients()> own_gradients_;
  std::vector<at::Tensor> parameters_;
  std::unordered_map<const c10::TensorImpl*, size_t> groups_;
  std::vector<std::pair<at::Tensor, unsigned>> hooked_;
  /// Per parameter group, the square norms of this rank's own gradients: of the backward that runs
  /// now (which may yet fail), and of those since the last step.
  std::vector<std::vector<at::Tensor>> arriving_;
  std::vector<at::Tensor> sums_;
  /// Of the loss whose gradients they are, if it was scaled.
  at::Tensor scale_;
  /// Backward passes since the last step, and which one runs now.
  int64_t backwards_ = 0;
  int backward_ = -1;
  /// What steps have used, and the same with what was measured since.
  RunningGain used_;
  std::optional<RunningGain> measured_;
  at::Tensor is_finite_;
  at::Tensor effective_steps_ = at::zeros({}, at::kDouble);
};

GainMeter::GainMeter(std::optional<comm::Group> group, const std::vector<Tensors>& parameter_groups,
                     const GainMeterOptions& options)
    : hooks_(std::make_shared<Hooks>(std::move(group), options)) {
  for (const auto& parameters : parameter_groups) {
    hooks_->add_group(parameters);
  }
}

GainMeter::~GainMeter() { hooks_->unhook(); }

void GainMeter::add_group(const Tensors& parameters) { hooks_->add_group(parameters); }

void GainMeter::measure_from(std::function<Gradients()> own_gradients) {
  hooks_->measure_from(std::move(own_gradients));
}

void GainMeter::require_measurement() const { hooks_->require_measurement(); }

void GainMeter::count_step() { hooks_->count_step(); }

void GainMeter::forget() { hooks_->forget(); }

at::Tensor GainMeter::gains() const { return hooks_->now().gains(); }

at::Tensor GainMeter::gain() const { return hooks_->now().gain(); }

at::Tensor GainMeter::effective_steps() const { return hooks_->effective_steps(); }

double GainMeter::scale() const { return hooks_->used().scale(); }

double GainMeter::smoothing() const { return hooks_->used().smoothing(); }

void GainMeter::set_scale(double scale, bool updates_estimate) {
  hooks_->set_scale(scale, updates_estimate);
}

int64_t GainMeter::accumulation() const { return hooks_->accumulation(); }

void GainMeter::set_accumulation(int64_t accumulation) { hooks_->set_accumulation(accumulation); }

std::pair<at::Tensor, at::Tensor> GainMeter::state() const {
  return {hooks_->used().state(), hooks_->effective_steps()};
}

void GainMeter::load(const at::Tensor& means, const at::Tensor& effective_steps) {
  hooks_->load(means, effective_steps);
}

void GainMeter::unhook() { hooks_->unhook(); }

}  // namespace fairshard::scale

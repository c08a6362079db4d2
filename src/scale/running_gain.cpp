#include <fairshard/scale/running_gain.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::scale {
namespace {

/// Gradients that do not differ at all would make a gain that no later noise changes.
constexpr double kSmallestVariance = 1e-6;

void check_scale(double scale) {
  TORCH_CHECK_VALUE(scale >= 1, "the scale is ", scale, ", but must be at least 1");
}

}  // namespace

RunningGain::RunningGain(int64_t groups, const RunningGainOptions& options) : options_(options) {
  check_scale(options.scale());
  TORCH_CHECK_VALUE(smoothing() >= 0 && smoothing() < 1, "the smoothing is ", smoothing(),
                    ", but must be at least 0 and below 1");
  variances_ = at::zeros({groups}, at::kDouble);
  squares_ = at::zeros({groups}, at::kDouble);
  weights_ = at::zeros({groups}, at::kDouble);
}

RunningGain RunningGain::updated(const at::Tensor& part_squares, const at::Tensor& mean_squares,
                                 int64_t parts) const {
  const auto n = static_cast<double>(parts);
  const double scale = options_.scale();
  const at::Tensor variance = (part_squares - n * mean_squares) * (scale / n / (n - 1));
  const at::Tensor square = (mean_squares - variance / scale).clamp_min(0);
  const at::Tensor is_known = (part_squares + mean_squares).isfinite() & (part_squares > 0);
  RunningGain result = *this;
  for (at::Tensor* mean : {&result.variances_, &result.squares_, &result.weights_}) {
    *mean = mean->to(variance.device());
  }
  const at::Tensor weights = result.weights_;
  const at::Tensor keep = options_.debias() ? at::full_like(weights, smoothing())
                                            : (weights / (weights + 1)).clamp_max(smoothing());
  const auto mix = [&](const at::Tensor& mean, const at::Tensor& value) {
    return at::where(is_known, keep * mean + (1 - keep) * value, mean);
  };
  result.variances_ = mix(result.variances_, variance.clamp_min(kSmallestVariance));
  result.squares_ = mix(result.squares_, square);
  result.weights_ =
      options_.debias() ? mix(weights, at::ones_like(weights)) : weights + is_known.to(at::kDouble);
  return result;
}

at::Tensor RunningGain::mean_of(const at::Tensor& values) const {
  return options_.debias() ? at::where(weights_ > 0, values / weights_, 0.0) : values;
}

at::Tensor RunningGain::gain_of(const at::Tensor& variance, const at::Tensor& square) const {
  const at::Tensor below = variance / options_.scale() + square;
  return at::where(below > 0, (variance + square) / below, 1.0);
}

at::Tensor RunningGain::gains() const { return gain_of(mean_of(variances_), mean_of(squares_)); }

at::Tensor RunningGain::gain() const {
  return gain_of(mean_of(variances_).sum(), mean_of(squares_).sum());
}

void RunningGain::add_group() {
  const at::Tensor state =
      at::cat({this->state(), RunningGain(1, options_).state().to(weights_.device())}, /*dim=*/1);
  variances_ = state[0];
  squares_ = state[1];
  weights_ = state[2];
}

void RunningGain::set_scale(double scale, bool updates_estimate) {
  check_scale(scale);
  if (updates_estimate) {
    variances_ = variances_ * (scale / options_.scale());
  }
  options_.scale(scale);
}

void RunningGain::multiply_variances(double factor) { variances_ = variances_ * factor; }

double RunningGain::smoothing() const {
  return options_.smoothing().value_or(std::max(1 - options_.scale() / 1000, 0.0));
}

at::Tensor RunningGain::state() const { return at::stack({variances_, squares_, weights_}); }

void RunningGain::load(const at::Tensor& state) {
  TORCH_CHECK_VALUE(state.dim() == 2 && state.size(0) == 3 && state.size(1) == groups(),
                    "the state is that of ", state.dim() == 2 ? state.size(1) : 0,
                    " parameter groups, but there are ", groups());
  const at::Tensor copy = state.detach().to(at::kDouble).clone();
  variances_ = copy[0];
  squares_ = copy[1];
  weights_ = copy[2];
}

}  // namespace fairshard::scale

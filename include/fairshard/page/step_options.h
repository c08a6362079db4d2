#pragma once
// What a step of a parameter needs beside its gradient: options and state, as torch's optimizers
// have them.

#include <ATen/core/Tensor.h>
#include <torch/arg.h>

namespace fairshard::page {

/// Which of torch's optimizers a step is that of.
enum class StepRule { kAdamW, kAdam, kSgd };

/// How a parameter is stepped; the names are those of torch's optimizers.
struct StepOptions {
  /// As torch's optimizers have it.
  /// @{
  TORCH_ARG(StepRule, rule) = StepRule::kAdamW;
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, beta1) = 0.9;
  TORCH_ARG(double, beta2) = 0.999;
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(double, momentum) = 0;
  TORCH_ARG(double, dampening) = 0;
  TORCH_ARG(bool, nesterov) = false;
  TORCH_ARG(bool, amsgrad) = false;
  TORCH_ARG(bool, maximize) = false;
  /// @}
};

/// An optimizer's state of one parameter. Undefined tensors are not used by the rule.
struct StepState {
  at::Tensor step;
  at::Tensor average;  ///< SGD: the momentum buffer
  at::Tensor square_average;
  at::Tensor largest_square_average;
  bool is_first = false;  ///< SGD: the momentum buffer has not been set yet
};

}  // namespace fairshard::page

#include <fairshard/nn/ema.h>
#include <fairshard/shard/sharded_step.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace fairshard {
namespace {

/// Sums of many small differences want as many bits.
at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

/// In the order of the parameters, which is that of all ranks.
std::vector<std::shared_ptr<shard::ShardedStep>> steps_of(
    const std::vector<at::Tensor>& parameters) {
  std::vector<std::shared_ptr<shard::ShardedStep>> steps;
  for (const at::Tensor& parameter : parameters) {
    auto step = shard::ShardedStep::of(parameter);
    if (step && std::find(steps.begin(), steps.end(), step) == steps.end()) {
      steps.push_back(std::move(step));
    }
  }
  return steps;
}

}  // namespace

Ema::Ema(torch::nn::Module& module, const EmaOptions& options) : options_(options) {
  TORCH_CHECK_VALUE(options.decay() >= 0 && options.decay() < 1, "decay is ", options.decay(),
                    ", but must be from 0 to below 1");
  for (const auto& item : module.named_parameters()) {
    const bool is_known = std::any_of(parameters_.begin(), parameters_.end(),
                                      [&](const auto& own) { return own.is_same(item.value()); });
    if (item.value().is_floating_point() && !is_known) {  // tied ones once
      parameters_.push_back(item.value());
      averages_.emplace_back(item.key(), at::Tensor());
    }
  }
  wait_for_parameters();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    averages_[i].second =
        parameters_[i].detach().to(wide(parameters_[i].scalar_type()), false, /*copy=*/true);
  }
}

void Ema::wait_for_parameters() const {
  for (const auto& step : steps_of(parameters_)) {
    step->wait_for_parameters();
  }
}

void Ema::update() {
  TORCH_CHECK(set_aside_.empty(),
              "Ema::update: the module has the averages in place of its weights");
  wait_for_parameters();
  const at::NoGradGuard no_grad;
  const auto n = static_cast<double>(updates_++);
  const double decay =
      options_.warmup() ? std::min(options_.decay(), (1 + n) / (10 + n)) : options_.decay();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& average = averages_[i].second;
    average.lerp_(parameters_[i].detach().to(average.options()), 1 - decay);
  }
}

Ema::Applied Ema::apply() {
  for (const auto& step : steps_of(parameters_)) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !step->options().flat().reshard_after_forward(),
        "Ema::apply: parameters are released after their use (release_parameters), so that they "
        "cannot be exchanged for a while: copy_to() another module");
  }
  wait_for_parameters();
  return Applied(*this);
}

/// Not through the parameters themselves: version counters stay, so that master weights, which
/// follow what is written to parameters, do not follow this.
void Ema::put_averages() {
  TORCH_CHECK(set_aside_.empty(), "Ema::apply: the averages are applied already");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor values = parameters_[i].variable_data();
    set_aside_.push_back(values.clone());
    values.copy_(averages_[i].second);
  }
}

void Ema::put_back() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].variable_data().copy_(set_aside_[i]);
  }
  set_aside_.clear();
}

void Ema::copy_to(torch::nn::Module& module) const {
  const at::NoGradGuard no_grad;
  const auto named = module.named_parameters();
  for (const auto& [name, average] : averages_) {
    const at::Tensor* const target = named.find(name);
    TORCH_CHECK_VALUE(target, "Ema::copy_to: the module has no parameter '", name, "'");
    TORCH_CHECK_VALUE(target->sizes() == average.sizes(), "Ema::copy_to: '", name, "' has sizes ",
                      target->sizes(), ", but ", average.sizes(), " is wanted");
  }
  for (const auto& [name, average] : averages_) {
    named.find(name)->detach().copy_(average);
  }
}

}  // namespace fairshard

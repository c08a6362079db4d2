#include <fairshard/optim/fused.h>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

namespace fairshard {

using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;

namespace {

template <typename Archive, typename State>
void archive_state(Archive&& each, State& state) {
  each("step", state.step);
  each("average", state.average);
  each("square_average", state.square_average);
  each("largest_square_average", state.largest_square_average);
}

using States = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

FusedState& state_of(States& states, const at::Tensor& parameter) {
  auto& state = states[parameter.unsafeGetTensorImpl()];
  if (!state) {
    state = std::make_unique<FusedState>();
  }
  return static_cast<FusedState&>(*state);
}

Tensors with_gradients(const OptimizerParamGroup& group) {
  Tensors result;
  for (const auto& parameter : group.params()) {
    if (parameter.grad().defined()) {
      result.push_back(parameter);
    }
  }
  return result;
}

Tensors gradients_of(const Tensors& parameters) {
  Tensors result;
  result.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    result.push_back(parameter.grad());
  }
  return result;
}

struct Moments {
  Tensors averages;
  Tensors square_averages;
  Tensors largest_square_averages;
  Tensors steps;
};

Moments moments_of(States& states, const Tensors& parameters, bool amsgrad) {
  Moments moments;
  for (const auto& parameter : parameters) {
    FusedState& state = state_of(states, parameter);
    if (!state.step.defined()) {
      state.step = at::zeros({}, parameter.options().dtype(at::kFloat).requires_grad(false));
      state.average = at::zeros_like(parameter);
      state.square_average = at::zeros_like(parameter);
    }
    if (amsgrad && !state.largest_square_average.defined()) {
      state.largest_square_average = at::zeros_like(parameter);
    }
    state.step.add_(1);
    moments.steps.push_back(state.step);
    moments.averages.push_back(state.average);
    moments.square_averages.push_back(state.square_average);
    if (amsgrad) {
      moments.largest_square_averages.push_back(state.largest_square_average);
    }
  }
  return moments;
}

/// ATen's fused Adam and AdamW have one signature.
template <typename Options, typename Kernel>
void step_adam(const Options& options, States& states, const OptimizerParamGroup& group,
               Kernel kernel) {
  Tensors parameters = with_gradients(group);
  if (parameters.empty()) {
    return;
  }
  const Tensors gradients = gradients_of(parameters);
  Moments moments = moments_of(states, parameters, options.amsgrad());
  const auto [beta1, beta2] = options.betas();
  kernel(parameters, gradients, moments.averages, moments.square_averages,
         moments.largest_square_averages, moments.steps, options.lr(), beta1, beta2,
         options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
}

}  // namespace

void FusedState::serialize(torch::serialize::InputArchive& archive) {
  archive_state([&](const char* key, at::Tensor& value) { archive.try_read(key, value, true); },
                *this);
}

void FusedState::serialize(torch::serialize::OutputArchive& archive) const {
  archive_state(
      [&](const char* key, const at::Tensor& value) {
        if (value.defined()) {
          archive.write(key, value, true);
        }
      },
      *this);
}

namespace detail {

at::Tensor FusedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups_) {
    step_group(group);
  }
  return loss;
}

}  // namespace detail

void AdamW::step_group(OptimizerParamGroup& group) {
  step_adam(static_cast<const Options&>(group.options()), state_, group,
            [](auto&&... arguments) { at::_fused_adamw_(arguments...); });
}

void Adam::step_group(OptimizerParamGroup& group) {
  step_adam(static_cast<const Options&>(group.options()), state_, group,
            [](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

void SGD::step_group(OptimizerParamGroup& group) {
  const auto& options = static_cast<const Options&>(group.options());
  // The fused call takes one answer to "is this the first step?" for all of its tensors.
  Tensors known;
  Tensors fresh;
  for (const auto& parameter : with_gradients(group)) {
    const bool has_average = state_of(state_, parameter).average.defined();
    (has_average || options.momentum() == 0 ? known : fresh).push_back(parameter);
  }
  for (const bool is_first : {true, false}) {
    const Tensors& parameters = is_first ? fresh : known;
    if (parameters.empty()) {
      continue;
    }
    Tensors averages;
    for (size_t i = 0; i < parameters.size() && options.momentum() != 0; ++i) {
      at::Tensor& average = state_of(state_, parameters[i]).average;
      average = is_first ? at::zeros_like(parameters[i]) : average;
      averages.push_back(average);
    }
    at::_fused_sgd_(parameters, gradients_of(parameters), averages, options.weight_decay(),
                    options.momentum(), options.lr(), options.dampening(), options.nesterov(),
                    /*maximize=*/false, is_first);
  }
}

}  // namespace fairshard

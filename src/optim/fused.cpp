#include <fairshard/optim/fused.h>
#include <fairshard/shard/master_weights.h>

#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <functional>

namespace fairshard {

using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using Tensors = std::vector<at::Tensor>;

namespace {

template <typename Archive, typename State>
void archive_state(Archive&& each, State& state) {
  each("step", state.step);
  each("average", state.average);
  each("square_average", state.square_average);
  each("largest_square_average", state.largest_square_average);
  each("master", state.master);
}

using States = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

FusedState& state_of(States& states, const at::Tensor& parameter) {
  auto& state = states[parameter.unsafeGetTensorImpl()];
  if (!state) {
    state = std::make_unique<FusedState>();
  }
  return static_cast<FusedState&>(*state);
}

/// Runs `step(begin, end)` over tensors. On the CPU each thread takes tensors of its own: ATen's
/// kernels split every tensor among all threads, and wait for them after each.
void for_tensors(const Tensors& tensors, const std::function<void(size_t, size_t)>& step) {
  const auto count = static_cast<int64_t>(tensors.size());
  const int64_t threads = at::get_num_threads();
  if (!tensors[0].is_cpu() || count < 2 * threads) {
    step(0, tensors.size());
    return;
  }
  const int64_t grain = (count + threads - 1) / threads;
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;  // not inherited from the thread that asks
    step(static_cast<size_t>(begin), static_cast<size_t>(end));
  });
}

at::TensorList part(const Tensors& tensors, size_t begin, size_t end) {
  return tensors.empty() ? at::TensorList() : at::TensorList(tensors).slice(begin, end - begin);
}

/// Adds one to each. For single numbers in host memory, ATen would take longer than the step does.
void count(at::TensorList steps) {
  if (!steps[0].is_cpu()) {
    at::_foreach_add_(steps, 1);
    return;
  }
  for (const at::Tensor& step : steps) {
    *step.mutable_data_ptr<float>() += 1;
  }
}

void check_not_negative(const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0, name, " is ", value, ", but must be at least 0");
}

template <typename Options>
void check_adam(const Options& options) {
  check_not_negative("lr", options.lr());
  check_not_negative("eps", options.eps());
  check_not_negative("weight_decay", options.weight_decay());
  const auto [first, second] = options.betas();
  for (const double beta : {first, second}) {
    TORCH_CHECK_VALUE(beta >= 0 && beta < 1, "betas are ", first, " and ", second,
                      ", but must be at least 0 and below 1");
  }
}

struct Moments {
  Tensors averages;
  Tensors square_averages;
  Tensors largest_square_averages;
  Tensors steps;
};

Moments moments_of(const Tensors& values, const std::vector<FusedState*>& states, bool amsgrad) {
  Moments moments;
  for (size_t i = 0; i < values.size(); ++i) {
    FusedState& state = *states[i];
    if (!state.step.defined()) {
      state.step = at::zeros({}, values[i].options().dtype(at::kFloat).requires_grad(false));
      state.average = at::zeros_like(values[i]);
      state.square_average = at::zeros_like(values[i]);
    }
    if (amsgrad && !state.largest_square_average.defined()) {
      state.largest_square_average = at::zeros_like(values[i]);
    }
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
template <typename Options, typename Targets, typename Kernel>
void step_adam(const Options& options, const Targets& targets, Kernel kernel) {
  const Moments moments = moments_of(targets.values, targets.states, options.amsgrad());
  const auto [beta1, beta2] = options.betas();
  for_tensors(targets.values, [&, beta1 = beta1, beta2 = beta2](size_t begin, size_t end) {
    const auto steps = part(moments.steps, begin, end);
    count(steps);
    kernel(part(targets.values, begin, end), part(targets.gradients, begin, end),
           part(moments.averages, begin, end), part(moments.square_averages, begin, end),
           part(moments.largest_square_averages, begin, end), steps, options.lr(), beta1, beta2,
           options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false);
  });
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

void check_options(const torch::optim::AdamOptions& options) { check_adam(options); }
void check_options(const torch::optim::AdamWOptions& options) { check_adam(options); }
void check_options(const torch::optim::SGDOptions& options) {
  check_not_negative("lr", options.lr());
  check_not_negative("momentum", options.momentum());
  check_not_negative("weight_decay", options.weight_decay());
  TORCH_CHECK_VALUE(!options.nesterov() || (options.momentum() > 0 && options.dampening() == 0),
                    "nesterov goes with a momentum above 0 and no dampening, but these are ",
                    options.momentum(), " and ", options.dampening());
}

at::Tensor FusedOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (const auto& group : param_groups_) {
    step_group(group);
  }
  return loss;
}

bool FusedOptimizer::has_master(const at::Tensor& parameter) const {
  return options_.master_weights() && parameter.is_floating_point() &&
         c10::elementSize(parameter.scalar_type()) < sizeof(float);
}

void FusedOptimizer::step_group(const OptimizerParamGroup& group) {
  Targets targets;
  Tensors rounded;
  for (const auto& parameter : group.params()) {
    if (!parameter.grad().defined()) {
      continue;
    }
    FusedState& state = state_of(state_, parameter);
    targets.states.push_back(&state);
    if (!has_master(parameter)) {
      targets.values.push_back(parameter);
      targets.gradients.push_back(parameter.grad());
      continue;
    }
    if (!state.master.defined()) {
      state.master = parameter.detach().to(at::kFloat);
    } else if (state.seen_version != parameter._version()) {
      shard::follow_writes(state.master, parameter, parameter.scalar_type());
    }
    rounded.push_back(parameter);
    targets.values.push_back(state.master);
    targets.gradients.push_back(parameter.grad().to(at::kFloat));
  }
  if (targets.values.empty()) {
    return;
  }
  step_targets(group.options(), targets);
  for (const auto& parameter : rounded) {
    FusedState& state = state_of(state_, parameter);
    at::Tensor(parameter).copy_(state.master);
    state.seen_version = parameter._version();
  }
}

}  // namespace detail

void AdamW::step_targets(const OptimizerOptions& options, const Targets& targets) {
  step_adam(static_cast<const Options&>(options), targets,
            [](auto&&... arguments) { at::_fused_adamw_(arguments...); });
}

void Adam::step_targets(const OptimizerOptions& options, const Targets& targets) {
  step_adam(static_cast<const Options&>(options), targets,
            [](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

void SGD::step_targets(const OptimizerOptions& options, const Targets& targets) {
  const auto& sgd = static_cast<const Options&>(options);
  // The fused call takes one answer to "is this the first step?" for all of its tensors.
  for (const bool is_first : {false, true}) {
    Tensors values;
    Tensors gradients;
    Tensors averages;
    for (size_t i = 0; i < targets.values.size(); ++i) {
      at::Tensor& average = targets.states[i]->average;
      if (is_first != (sgd.momentum() != 0 && !average.defined())) {
        continue;
      }
      values.push_back(targets.values[i]);
      gradients.push_back(targets.gradients[i]);
      if (sgd.momentum() != 0) {
        average = is_first ? at::zeros_like(values.back()) : average;
        averages.push_back(average);
      }
    }
    if (values.empty()) {
      continue;
    }
    for_tensors(values, [&](size_t begin, size_t end) {
      at::_fused_sgd_(part(values, begin, end), part(gradients, begin, end),
                      part(averages, begin, end), sgd.weight_decay(), sgd.momentum(), sgd.lr(),
                      sgd.dampening(), sgd.nesterov(), /*maximize=*/false, is_first);
    });
  }
}

}  // namespace fairshard

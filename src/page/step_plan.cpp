#include <fairshard/page/step_plan.h>

#include <ATen/ops/zeros.h>

namespace fairshard::page {

void plan_steps(OptimizerWorker& worker, const std::vector<at::Tensor>& parameters,
                const StepOptions& options, const StateAccess& states) {
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.requires_grad()) {
      continue;
    }
    const auto at_home = [&](const char* field) {
      const at::Tensor value = worker.home_of(states.get(parameter, field), parameter);
      states.set(parameter, field, value);
      return value;
    };
    StepState state;
    if (options.rule() != StepRule::kSgd) {
      state.step = states.get(parameter, "step");
      if (!state.step.defined()) {
        state.step = at::zeros({}, at::kFloat);
        states.set(parameter, "step", state.step);
      }
      state.average = at_home("exp_avg");
      state.square_average = at_home("exp_avg_sq");
      if (options.amsgrad()) {
        state.largest_square_average = at_home("max_exp_avg_sq");
      }
    } else if (options.momentum() != 0) {
      state.is_first = !states.get(parameter, "momentum_buffer").defined();
      state.average = at_home("momentum_buffer");
    }
    worker.plan(parameter, options, state);
  }
}

}  // namespace fairshard::page

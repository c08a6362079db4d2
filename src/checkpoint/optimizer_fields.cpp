#include "optimizer_fields.h"

#include <fairshard/optim/element_wise.h>
#include <fairshard/optim/fused.h>

#include <c10/util/Exception.h>

#include <tuple>
#include <typeinfo>
#include <utility>

namespace fairshard {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using Fields = std::vector<StateField>;

StateField count(int64_t& steps) {
  return {"step", nullptr, &steps, /*is_like_parameter=*/false, /*is_required=*/true};
}

StateField optional_tensor(const char* name, at::Tensor& tensor) {
  return {name, &tensor, nullptr, /*is_like_parameter=*/true, /*is_required=*/false};
}

template <typename State>
Fields adam_fields(State& state) {
  return {count(state.step()),
          {"exp_avg", &state.exp_avg()},
          {"exp_avg_sq", &state.exp_avg_sq()},
          optional_tensor("max_exp_avg_sq", state.max_exp_avg_sq())};
}

Fields fused_fields(const Optimizer& optimizer, FusedState& state) {
  if (dynamic_cast<const SGD*>(&optimizer)) {
    return {optional_tensor("momentum_buffer", state.average)};
  }
  return {{"step", &state.step, nullptr, /*is_like_parameter=*/false},
          {"exp_avg", &state.average},
          {"exp_avg_sq", &state.square_average},
          optional_tensor("max_exp_avg_sq", state.largest_square_average)};
}

/// Calls `visit` with the name of each option and a getter-and-setter of its own type.
template <typename Options, typename Visit>
void visit_adam(Options& options, Visit visit) {
  visit("lr", options.lr());
  visit("betas", options.betas());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}

template <typename Visit>
void visit_options(OptimizerOptions& options, Visit visit) {
  namespace optim = torch::optim;
  if (auto* const adam = dynamic_cast<optim::AdamOptions*>(&options)) {
    visit_adam(*adam, visit);
  } else if (auto* const adamw = dynamic_cast<optim::AdamWOptions*>(&options)) {
    visit_adam(*adamw, visit);
  } else if (auto* const sgd = dynamic_cast<optim::SGDOptions*>(&options)) {
    visit("lr", sgd->lr());
    visit("momentum", sgd->momentum());
    visit("dampening", sgd->dampening());
    visit("weight_decay", sgd->weight_decay());
    visit("nesterov", sgd->nesterov());
  } else if (auto* const rms = dynamic_cast<optim::RMSpropOptions*>(&options)) {
    visit("lr", rms->lr());
    visit("alpha", rms->alpha());
    visit("eps", rms->eps());
    visit("weight_decay", rms->weight_decay());
    visit("momentum", rms->momentum());
    visit("centered", rms->centered());
  } else if (auto* const adagrad = dynamic_cast<optim::AdagradOptions*>(&options)) {
    visit("lr", adagrad->lr());
    visit("lr_decay", adagrad->lr_decay());
    visit("weight_decay", adagrad->weight_decay());
    visit("eps", adagrad->eps());
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "checkpoints do not know optimizer options of class ",
                                typeid(options).name());
  }
}

}  // namespace

std::unique_ptr<OptimizerParamState> new_state_for(const Optimizer& optimizer) {
  namespace optim = torch::optim;
  if (dynamic_cast<const detail::FusedOptimizer*>(&optimizer)) {
    return std::make_unique<FusedState>();
  }
  if (dynamic_cast<const optim::Adam*>(&optimizer)) {
    return std::make_unique<optim::AdamParamState>();
  }
  if (dynamic_cast<const optim::AdamW*>(&optimizer)) {
    return std::make_unique<optim::AdamWParamState>();
  }
  if (dynamic_cast<const optim::SGD*>(&optimizer)) {
    return std::make_unique<optim::SGDParamState>();
  }
  if (dynamic_cast<const optim::RMSprop*>(&optimizer)) {
    return std::make_unique<optim::RMSpropParamState>();
  }
  if (dynamic_cast<const optim::Adagrad*>(&optimizer)) {
    return std::make_unique<optim::AdagradParamState>();
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "checkpoints do not know the optimizer class ",
                              typeid(optimizer).name(), ": derive a CheckpointPart for it");
}

Fields fields_of(const Optimizer& optimizer, OptimizerParamState& state) {
  namespace optim = torch::optim;
  if (auto* const fused = dynamic_cast<FusedState*>(&state)) {
    return fused_fields(optimizer, *fused);
  }
  if (auto* const adam = dynamic_cast<optim::AdamParamState*>(&state)) {
    return adam_fields(*adam);
  }
  if (auto* const adamw = dynamic_cast<optim::AdamWParamState*>(&state)) {
    return adam_fields(*adamw);
  }
  if (auto* const sgd = dynamic_cast<optim::SGDParamState*>(&state)) {
    return {optional_tensor("momentum_buffer", sgd->momentum_buffer())};
  }
  if (auto* const rms = dynamic_cast<optim::RMSpropParamState*>(&state)) {
    return {count(rms->step()),
            {"square_avg", &rms->square_avg()},
            optional_tensor("momentum_buffer", rms->momentum_buffer()),
            optional_tensor("grad_avg", rms->grad_avg())};
  }
  if (auto* const adagrad = dynamic_cast<optim::AdagradParamState*>(&state)) {
    return {count(adagrad->step()), {"sum", &adagrad->sum()}};
  }
  TORCH_CHECK_NOT_IMPLEMENTED(false, "checkpoints do not know the optimizer state ",
                              typeid(state).name());
}

store::Json options_to_json(const OptimizerOptions& options) {
  store::Json json = store::Json::object();
  const auto copy = options.clone();
  visit_options(*copy, [&](const char* name, const auto& value) { json[name] = value; });
  return json;
}

void options_from_json(OptimizerOptions& options, const store::Json& json) {
  visit_options(options, [&](const char* name, auto& value) {
    const auto found = json.find(name);
    if (found != json.end() && !found->is_null()) {
      value = found->template get<std::decay_t<decltype(value)>>();
    }
  });
}

}  // namespace fairshard

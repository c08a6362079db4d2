#include "optimizer_access.h"

#include "../store/json.h"
#include <fairshard/optim/adascale.h>
#include <fairshard/optim/element_wise.h>
#include <fairshard/optim/fused.h>
#include <fairshard/optim/optimizer_fields.h>
#include <fairshard/optim/oss.h>

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <tuple>
#include <typeinfo>
#include <unordered_map>
#include <utility>

namespace fairshard {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using Fields = std::vector<StateField>;

StateField count(int64_t& steps) { return {"step", nullptr, &steps}; }

StateField optional_tensor(const char* name, at::Tensor& tensor) {
  return {name, &tensor, nullptr, /*is_required=*/false};
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
  return {{"step", &state.step},
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

/// What a class of the user's own says of itself; null for others.
const OptimizerFields* own_fields(Optimizer& optimizer) {
  auto* const oss = dynamic_cast<OssBase*>(&optimizer);
  return dynamic_cast<const OptimizerFields*>(oss ? &oss->base() : &optimizer);
}

constexpr const char* kDerive =
    ": derive the optimizer from fairshard::OptimizerFields, too, or a CheckpointPart for it";

/// `own` is that of the optimizer.
template <typename Visit>
void visit_options(OptimizerOptions& options, const OptimizerFields* own, Visit visit) {
  namespace optim = torch::optim;
  if (own) {
    for (const OptionField& field : own->option_fields(options)) {
      std::visit([&](auto* value) { visit(field.name, *value); }, field.value);
    }
  } else if (auto* const adam = dynamic_cast<optim::AdamOptions*>(&options)) {
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
                                c10::demangle(typeid(options).name()), kDerive);
  }
}

/// An empty state for an optimizer of this class. Throws if the class is not known.
std::unique_ptr<OptimizerParamState> new_state_for(const Optimizer& optimizer) {
  namespace optim = torch::optim;
  if (const auto* const own = dynamic_cast<const OptimizerFields*>(&optimizer)) {
    return own->new_state();
  }
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
                              c10::demangle(typeid(optimizer).name()), kDerive);
}

/// The fields of a state of this optimizer, defined or not; none if it is not known.
Fields fields_of(const Optimizer& optimizer, OptimizerParamState& state) {
  namespace optim = torch::optim;
  if (const auto* const own = dynamic_cast<const OptimizerFields*>(&optimizer)) {
    return own->state_fields(state);
  }
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
  return {};
}

std::string options_to_json(const OptimizerOptions& options, const OptimizerFields* own) {
  store::Json json = store::Json::object();
  const auto copy = options.clone();
  visit_options(*copy, own, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump();
}

/// Takes up those options that it knows.
void options_from_json(OptimizerOptions& options, const OptimizerFields* own,
                       const store::Json& json) {
  visit_options(options, own, [&](const char* name, auto& value) {
    const auto found = json.find(name);
    if (found != json.end() && !found->is_null()) {
      value = found->template get<std::decay_t<decltype(value)>>();
    }
  });
}

void all_options_from_json(Optimizer& optimizer, const std::string& text) {
  const auto groups = store::parse_json(text, "param_groups");
  try {
    for (size_t i = 0; i < groups.size(); ++i) {
      options_from_json(optimizer.param_groups()[i].options(), own_fields(optimizer), groups[i]);
    }
  } catch (const store::Json::exception& error) {
    TORCH_CHECK_VALUE(false, "param_groups: options of another kind (", error.what(), ")");
  }
}

/// Its own names are those that an OSS was given.
std::vector<parts::OptimizerGroup> groups_of(Optimizer& optimizer) {
  std::unordered_map<const c10::TensorImpl*, std::string> own_names;
  if (const auto* const oss = dynamic_cast<OssBase*>(&optimizer)) {
    for (const auto& group : oss->flat_groups()) {
      for (const auto& parameter : group->parameters()) {
        own_names[parameter.tensor.unsafeGetTensorImpl()] = parameter.name;
      }
    }
  }
  std::vector<parts::OptimizerGroup> result;
  for (auto& group : optimizer.param_groups()) {
    parts::OptimizerGroup item{
        options_to_json(group.options(), own_fields(optimizer)), group.params(), {}};
    for (const at::Tensor& parameter : group.params()) {
      const auto found = own_names.find(parameter.unsafeGetTensorImpl());
      item.names.push_back(found != own_names.end()
                               ? found->second
                               : c10::str("group", result.size(), ".", item.names.size()));
    }
    result.push_back(std::move(item));
  }
  return result;
}

parts::StateFields state_of(Optimizer& base, const at::Tensor& stepped) {
  parts::StateFields result;
  const auto found = base.state().find(stepped.unsafeGetTensorImpl());
  if (found == base.state().end()) {
    return result;
  }
  const auto& own = *found->second;
  const Fields fields = fields_of(base, *found->second);
  TORCH_CHECK_NOT_IMPLEMENTED(!fields.empty(), "checkpoints do not know the optimizer state ",
                              c10::demangle(typeid(own).name()), kDerive);
  for (const StateField& field : fields) {
    if (field.count) {
      result.emplace(field.name, at::scalar_tensor(*field.count, at::kLong));
    } else if (field.tensor->defined()) {
      result.emplace(field.name, *field.tensor);
    }
  }
  return result;
}

std::unique_ptr<OptimizerParamState> state_from(const Optimizer& base, const at::Tensor& stepped,
                                                const parts::StateFields& fields) {
  auto state = new_state_for(base);
  const auto set = [&](const StateField& field, const at::Tensor& value) {
    if (field.count) {
      *field.count = static_cast<int64_t>(value.item<double>());
    } else {
      const bool is_step = std::string_view(field.name) == "step";
      *field.tensor = value.to(stepped.device(), is_step ? at::kFloat : value.scalar_type());
    }
  };
  for (const StateField& field : fields_of(base, *state)) {
    const auto found = fields.find(field.name);
    if (found != fields.end()) {
      const auto* const value = std::get_if<at::Tensor>(&found->second);
      TORCH_CHECK_VALUE(value, "the field '", field.name, "' of an optimizer's state is no tensor");
      set(field, *value);
    }
  }
  if (const auto found = fields.find("master"); found != fields.end()) {
    auto& fused = static_cast<FusedState&>(*state);
    fused.master = std::get<at::Tensor>(found->second);
    fused.seen_version = stepped._version();
  }
  return state;
}

at::Tensor master_of(Optimizer& base, const at::Tensor& parameter) {
  const auto found = base.state().find(parameter.unsafeGetTensorImpl());
  if (found == base.state().end()) {
    return {};
  }
  const auto& state = static_cast<const FusedState&>(*found->second);
  return state.seen_version == parameter._version() ? state.master : at::Tensor();
}

/// The names of fields of this optimizer's states: all, or those that they must have.
std::vector<std::string> field_names(const Optimizer& base, bool only_required) {
  const auto state = new_state_for(base);
  std::vector<std::string> names;
  for (const StateField& field : fields_of(base, *state)) {
    if (field.is_required || !only_required) {
      names.emplace_back(field.name);
    }
  }
  return names;
}

}  // namespace

std::vector<std::string> state_field_names(const Optimizer& optimizer) {
  return field_names(optimizer, /*only_required=*/false);
}

void zero_state(Optimizer& optimizer, const at::Tensor& tensor,
                const std::vector<std::string>& fields) {
  const auto found = optimizer.state().find(tensor.unsafeGetTensorImpl());
  if (found == optimizer.state().end()) {
    return;
  }
  for (const StateField& field : fields_of(optimizer, *found->second)) {
    if (std::find(fields.begin(), fields.end(), field.name) == fields.end()) {
      continue;
    }
    if (field.count) {
      *field.count = 0;
    } else if (field.tensor->defined()) {
      field.tensor->zero_();
    }
  }
}

parts::OptimizerAccess access_to(Optimizer& optimizer) {
  auto* const oss = dynamic_cast<OssBase*>(&optimizer);
  Optimizer& base = oss ? oss->base() : optimizer;
  parts::OptimizerAccess access;
  access.groups = [&optimizer] { return groups_of(optimizer); };
  access.state = [&base](const at::Tensor& stepped) { return state_of(base, stepped); };
  access.set_options = [&optimizer](const std::string& json) {
    all_options_from_json(optimizer, json);
  };
  access.set_states = [&base](const auto& states) {
    base.state().clear();
    for (const auto& [stepped, fields] : states) {
      base.state()[stepped.unsafeGetTensorImpl()] = state_from(base, stepped, fields);
    }
  };
  access.required = [&base](const at::Tensor& /*stepped*/) {
    return field_names(base, /*only_required=*/true);
  };
  access.knows = [&base](const std::string& field) {
    const auto names = field_names(base, /*only_required=*/false);
    return std::find(names.begin(), names.end(), field) != names.end();
  };
  if (oss) {
    access.sharded = oss->sharded_step().shared_from_this();
  } else if (const auto* const fused = dynamic_cast<detail::FusedOptimizer*>(&optimizer)) {
    access.has_master = [fused](const at::Tensor& tensor) { return fused->has_master(tensor); };
    access.master = [&base](const at::Tensor& tensor) { return master_of(base, tensor); };
  }
  if (auto* const adascale = dynamic_cast<AdaScaleBase*>(&optimizer)) {
    access.meter = [adascale] {  // which owns it
      return std::shared_ptr<scale::GainMeter>(std::shared_ptr<void>(), &adascale->meter());
    };
  }
  return access;
}

}  // namespace fairshard

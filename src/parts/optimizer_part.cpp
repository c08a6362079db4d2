// Optimizers: states under "part/parameter/field", options under "part/param_groups".
#include "../store/json.h"
#include "gain_value.h"
#include <fairshard/parts/parts.h>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_map>

namespace fairshard::parts {
namespace {

using store::Json;
using States = std::vector<std::pair<at::Tensor, StateFields>>;

/// What an optimizer steps: a parameter, or the range of one that this rank owns.
struct Stepped {
  /// The parameter's name.
  std::string name;
  /// The whole parameter.
  at::Tensor parameter;
  /// What the optimizer has a state for.
  at::Tensor values;
  /// The dtype of the state.
  at::ScalarType dtype;
  int64_t begin = 0;
  int64_t end = 0;
};

/// Elements of `value` in the order in which those of `like` lie in memory.
at::Tensor in_memory_order(const at::Tensor& value, const at::Tensor& like) {
  return value.strides() == like.strides()
             ? value
             : at::empty_strided(like.sizes(), like.strides(), value.options()).copy_(value);
}

/// Whether a field was asked for, but was not in the checkpoint.
bool is_missing(const Value& value) {
  const auto* const tensor = std::get_if<at::Tensor>(&value);
  return tensor && !tensor->defined();
}

/// Of a parameter's state, the names of fields that a checkpoint has.
std::vector<std::string> stored_fields(const store::Reader& reader, const std::string& prefix) {
  std::vector<std::string> fields = reader.names_under(prefix);
  const auto values = reader.value_names_under(prefix);
  fields.insert(fields.end(), values.begin(), values.end());
  std::erase_if(fields, [](const auto& field) { return field.find('/') != std::string::npos; });
  return fields;
}

class OptimizerPart : public CheckpointPart {
 public:
  explicit OptimizerPart(OptimizerAccess access) : access_(std::move(access)) {}

  void describe(const std::string& /*name*/, CheckpointContext& context) override {
    const auto groups = access_.groups();  // which may follow a change of the layout
    if (access_.sharded) {
      for (const auto& group : access_.sharded->flat_groups()) {
        group->update_masters();
        context.add_shards(*group);
      }
      return;
    }
    for (const OptimizerGroup& group : groups) {
      for (const at::Tensor& parameter : group.parameters) {
        const at::Tensor master = has_master(parameter) ? access_.master(parameter) : at::Tensor();
        if (master.defined()) {
          context.add_master(parameter, master);
        }
      }
    }
  }

  void save(const std::string& name, const CheckpointContext& context,
            store::State& state) override {
    const auto groups = named_groups(context);
    const std::string groups_key = name + "/param_groups";
    Json options = Json::array();
    for (const OptimizerGroup& group : groups) {
      options.push_back(store::parse_json(group.options, groups_key));
      options.back()["params"] = group.names;
    }
    state.add_value(groups_key, store::dump_json(options, groups_key));
    if (access_.meter) {
      state.add_value(name + "/adascale", gain_to_json(*access_.meter()));
    }
    if (access_.sharded && access_.sharded->mesh().replica() > 0) {
      return;  // of replicas, which have the same, the first saves
    }
    for (const Stepped& stepped : all_stepped(groups)) {
      for (const auto& [field, value] : access_.state(stepped.values)) {
        save_field(c10::str(name, "/", stepped.name, "/", field), field, value, stepped, state);
      }
    }
  }

  void load(const std::string& name, const CheckpointContext& context,
            store::LoadPlan& plan) override {
    const auto groups = named_groups(context);
    load_options(name + "/param_groups", groups.size(), plan);
    if (access_.meter) {
      plan.add_optional_value(name + "/adascale", [meter = access_.meter, key = name + "/adascale"](
                                                      const std::string& json) {
        gain_from_json(*meter(), json, key);
      });
    }
    for (const OptimizerGroup& group : groups) {  // states of what other ranks own are expected too
      for (const std::string& own : group.names) {
        for (const std::string& field : known_fields(c10::str(name, "/", own, "/"), plan)) {
          plan.expects(c10::str(name, "/", own, "/", field));
        }
      }
    }
    const auto states = std::make_shared<States>();
    const auto all = all_stepped(groups);
    states->reserve(all.size());  // requests refer to their entries
    for (const Stepped& stepped : all) {
      load_state(c10::str(name, "/", stepped.name, "/"), stepped, context, *states, plan);
    }
    load_masters(context, plan);
    plan.then([set = access_.set_states, states, sharded = access_.sharded] {
      for (auto& [stepped, fields] : *states) {
        std::erase_if(fields, [](const auto& field) { return is_missing(field.second); });
      }
      set(*states);
      if (sharded) {
        sharded->freeze_layout();
        for (const auto& group : sharded->flat_groups()) {
          group->publish_masters();
        }
      }
    });
  }

 private:
  bool has_master(const at::Tensor& parameter) const {
    return access_.has_master && access_.has_master(parameter);
  }

  /// Whether a field has an element for each of the parameter's.
  bool is_like(const std::string& field, at::IntArrayRef sizes, at::IntArrayRef parameter) const {
    return field != "step" && (access_.knows || sizes == parameter);
  }

  /// With the names that the checkpoint's modules have for parameters.
  std::vector<OptimizerGroup> named_groups(const CheckpointContext& context) const {
    auto groups = access_.groups();
    for (OptimizerGroup& group : groups) {
      for (size_t i = 0; i < group.parameters.size(); ++i) {
        group.names[i] = context.name_of(group.parameters[i]).value_or(group.names[i]);
      }
    }
    return groups;
  }

  std::vector<Stepped> all_stepped(const std::vector<OptimizerGroup>& groups) const {
    std::vector<Stepped> result;
    std::unordered_map<const c10::TensorImpl*, std::string> names;
    for (const OptimizerGroup& group : groups) {
      for (size_t i = 0; i < group.parameters.size(); ++i) {
        const at::Tensor& parameter = group.parameters[i];
        names.emplace(parameter.unsafeGetTensorImpl(), group.names[i]);
        if (!access_.sharded) {
          result.push_back({group.names[i], parameter, parameter,
                            has_master(parameter) ? at::kFloat : parameter.scalar_type(), 0,
                            parameter.numel()});
        }
      }
    }
    if (access_.sharded) {
      for (const auto& group : access_.sharded->flat_groups()) {
        for (const auto& [piece, values] : group->slices()) {
          const at::Tensor& parameter = group->parameters()[piece.parameter].tensor;
          result.push_back({names.at(parameter.unsafeGetTensorImpl()), parameter, values,
                            values.scalar_type(), piece.begin, piece.end});
        }
      }
    }
    return result;
  }

  void save_field(const std::string& key, const std::string& field, const Value& value,
                  const Stepped& stepped, store::State& state) const {
    const auto* const tensor = std::get_if<at::Tensor>(&value);
    const bool is_sharded = access_.sharded != nullptr;
    if (!is_sharded) {
      tensor ? state.add_alike(key, *tensor) : state.add_value(key, std::get<std::string>(value));
    } else if (tensor && is_like(field, tensor->sizes(), stepped.values.sizes())) {
      state.add_range(key, store::layout_of(stepped.parameter), stepped.begin, stepped.end,
                      in_memory_order(*tensor, stepped.values));
    } else if (stepped.begin == 0) {  // all owners of the parameter have the same
      tensor ? state.add_whole(key, *tensor)
             : state.add_own_value(key, std::get<std::string>(value));
    }
  }

  void load_options(const std::string& key, size_t groups, store::LoadPlan& plan) const {
    if (const auto text = plan.reader().value(key)) {
      const Json json = store::parse_json(*text, key);
      TORCH_CHECK_VALUE(json.is_array() && json.size() == groups, "the checkpoint has ",
                        json.size(), " parameter groups, the optimizer ", groups);
    }
    plan.add_value(key, access_.set_options);
  }

  std::vector<std::string> known_fields(const std::string& prefix, store::LoadPlan& plan) const {
    auto fields = stored_fields(plan.reader(), prefix);
    if (access_.knows) {
      std::erase_if(fields, [this](const auto& field) { return !access_.knows(field); });
    }
    return fields;
  }

  void load_state(const std::string& prefix, const Stepped& stepped,
                  const CheckpointContext& context, States& states, store::LoadPlan& plan) const {
    auto fields = known_fields(prefix, plan);
    if (fields.empty()) {
      return;
    }
    for (const std::string& field : access_.required(stepped.values)) {
      if (std::find(fields.begin(), fields.end(), field) == fields.end()) {
        fields.push_back(field);
      }
    }
    StateFields& state = states.emplace_back(stepped.values, StateFields()).second;
    for (const std::string& field : fields) {
      load_field(prefix + field, stepped, state[field],
                 is_stored_like(prefix, field, stepped, plan), plan);
    }
    const auto key = context.key_of(stepped.parameter);
    if (has_master(stepped.parameter) && key && plan.reader().has(*key)) {
      const auto options = stepped.parameter.options().dtype(at::kFloat);
      const at::Tensor master = at::empty_like(stepped.parameter, options).detach();
      plan.add_tensor(*key, master);
      state["master"] = master;
    }
  }

  bool is_stored_like(const std::string& prefix, const std::string& field, const Stepped& stepped,
                      const store::LoadPlan& plan) const {
    const auto& stored = plan.reader().manifest().tensors;
    const auto found = stored.find(prefix + field);
    return found == stored.end() ||
           is_like(field, found->second.layout.sizes, stepped.parameter.sizes());
  }

  static void load_field(const std::string& key, const Stepped& stepped, Value& value,
                         bool is_like_parameter, store::LoadPlan& plan) {
    if (plan.reader().value(key)) {
      plan.add_value(key, [&value](const std::string& json) { value = json; });
    } else if (!is_like_parameter) {
      plan.add_any(key, [&value](const at::Tensor& read) { value = read; });
    } else {
      store::Layout layout = store::layout_of(stepped.parameter);
      layout.dtype = stepped.dtype;
      plan.add_range(key, layout, stepped.begin, stepped.end,
                     [&value, values = stepped.values](const at::Tensor& read) {
                       value = read.as_strided(values.sizes(), values.strides())
                                   .to(values.device(), read.scalar_type(), /*non_blocking=*/false,
                                       /*copy=*/true);
                     });
    }
  }

  /// Parameters are saved as exactly as a rank has them, so an OSS's master weights are loaded from
  /// there.
  void load_masters(const CheckpointContext& context, store::LoadPlan& plan) const {
    if (!access_.sharded) {
      return;
    }
    for (const auto& group : access_.sharded->flat_groups()) {
      for (const auto& slice : group->slices()) {
        const at::Tensor& parameter = group->parameters()[slice.piece.parameter].tensor;
        const auto key = context.key_of(parameter);
        if (!group->bucket(slice.piece.bucket).has_master() || !key || !plan.reader().has(*key)) {
          continue;
        }
        store::Layout layout = store::layout_of(parameter);
        layout.dtype = slice.values.scalar_type();
        plan.add_range(*key, layout, slice.piece.begin, slice.piece.end,
                       [values = slice.values](const at::Tensor& read) {
                         store::memory_view(values).copy_(read);
                       });
      }
    }
  }

  OptimizerAccess access_;
};

}  // namespace

Part make_optimizer_part(OptimizerAccess access) {
  return std::make_shared<OptimizerPart>(std::move(access));
}

}  // namespace fairshard::parts

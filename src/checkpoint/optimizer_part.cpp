#include "gain_value.h"
#include "optimizer_fields.h"
#include "parts.h"
#include <fairshard/optim/adascale.h>
#include <fairshard/optim/fused.h>
#include <fairshard/optim/oss.h>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include <memory>
#include <unordered_map>
#include <utility>

namespace fairshard {
namespace {

using store::Json;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

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

std::string fallback_name(size_t group, size_t number) {
  return c10::str("group", group, ".", number);
}

/// What both kinds of optimizer share. Keys are "part/parameter/field", and "part/param_groups".
class OptimizerPart : public CheckpointPart {
 public:
  explicit OptimizerPart(Optimizer& optimizer) : optimizer_(optimizer) {}

  void save(const std::string& name, const CheckpointContext& context,
            store::State& state) override {
    state.add_value(name + "/param_groups",
                    store::dump_json(groups_to_json(context), name + "/param_groups"));
    if (auto* const adascale = dynamic_cast<AdaScaleBase*>(&optimizer_)) {
      state.add_value(name + "/adascale", gain_to_json(adascale->meter()));
    }
    for (const Stepped& stepped : all_stepped(context)) {
      const auto found = base().state().find(stepped.values.unsafeGetTensorImpl());
      if (found == base().state().end()) {
        continue;
      }
      for (const auto& field : fields_of(base(), *found->second)) {
        save_field(c10::str(name, "/", stepped.name, "/", field.name), stepped, field, state);
      }
    }
  }

  void load(const std::string& name, const CheckpointContext& context,
            store::LoadPlan& plan) override {
    plan.add_value(name + "/param_groups", [this, name](const std::string& text) {
      try {
        groups_from_json(store::parse_json(text, name + "/param_groups"));
      } catch (const Json::exception& error) {
        TORCH_CHECK_VALUE(false, name, "/param_groups: options of another kind (", error.what(),
                          ")");
      }
    });
    if (auto* const adascale = dynamic_cast<AdaScaleBase*>(&optimizer_)) {
      plan.add_optional_value(name + "/adascale",
                              [adascale, key = name + "/adascale"](const std::string& text) {
                                gain_from_json(adascale->meter(), text, key);
                              });
    }
    // Those of other ranks' parameters are expected too.
    for (size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
      for (const auto& parameter_name : names(context, g)) {
        expect_state(c10::str(name, "/", parameter_name, "/"), plan);
      }
    }
    for (const Stepped& stepped : all_stepped(context)) {
      load_state(c10::str(name, "/", stepped.name, "/"), stepped, context, plan);
    }
  }

 protected:
  Optimizer& optimizer() const { return optimizer_; }
  /// The one that has the states.
  virtual Optimizer& base() const = 0;
  virtual std::vector<Stepped> all_stepped(const CheckpointContext& context) const = 0;
  virtual std::vector<std::string> names(const CheckpointContext& context, size_t group) const = 0;
  virtual void save_field(const std::string& key, const Stepped& stepped, const StateField& field,
                          store::State& state) const = 0;
  /// What a state has that is saved elsewhere.
  virtual void load_more(const Stepped& /*stepped*/, const CheckpointContext& /*context*/,
                         const std::shared_ptr<OptimizerParamState>& /*state*/,
                         store::LoadPlan& /*plan*/) const {}

 private:
  Json groups_to_json(const CheckpointContext& context) const {
    Json groups = Json::array();
    for (size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
      groups.push_back(options_to_json(optimizer_.param_groups()[g].options()));
      groups.back()["params"] = names(context, g);
    }
    return groups;
  }

  void groups_from_json(const Json& groups) const {
    TORCH_CHECK_VALUE(groups.is_array() && groups.size() == optimizer_.param_groups().size(),
                      "the checkpoint has ", groups.size(), " parameter groups, the optimizer ",
                      optimizer_.param_groups().size());
    for (size_t g = 0; g < groups.size(); ++g) {
      options_from_json(optimizer_.param_groups()[g].options(), groups[g]);
    }
  }

  /// Fields that this optimizer has for a parameter.
  void expect_state(const std::string& prefix, store::LoadPlan& plan) const {
    const auto state = new_state_for(base());
    for (const auto& field : fields_of(base(), *state)) {
      plan.expects(prefix + field.name);
    }
  }

  void load_state(const std::string& prefix, const Stepped& stepped,
                  const CheckpointContext& context, store::LoadPlan& plan) const {
    const std::shared_ptr<OptimizerParamState> state = new_state_for(base());
    const auto fields = fields_of(base(), *state);
    bool is_any = false;
    for (const auto& field : fields) {
      is_any = is_any || plan.expects(prefix + field.name);
    }
    for (const auto& field : fields) {
      if (is_any && (field.is_required || plan.expects(prefix + field.name))) {
        load_field(prefix + field.name, stepped, field, state, plan);
      }
    }
    if (is_any) {
      load_more(stepped, context, state, plan);
    }
    plan.then([this, state, is_any, values = stepped.values] {
      auto& states = base().state();
      states.erase(values.unsafeGetTensorImpl());
      if (is_any) {
        states[values.unsafeGetTensorImpl()] = state->clone();
      }
    });
  }

  static void load_field(const std::string& key, const Stepped& stepped, const StateField& field,
                         const std::shared_ptr<OptimizerParamState>& owner, store::LoadPlan& plan) {
    const at::Tensor& values = stepped.values;
    if (field.is_like_parameter) {
      store::Layout layout = store::layout_of(stepped.parameter);
      layout.dtype = stepped.dtype;
      plan.add_range(key, layout, stepped.begin, stepped.end,
                     [owner, target = field.tensor, values](const at::Tensor& read) {
                       const auto options = values.options().dtype(read.scalar_type());
                       *target = at::empty_strided(values.sizes(), values.strides(), options);
                       target->copy_(read.as_strided(values.sizes(), values.strides()));
                     });
      return;
    }
    plan.add_any(key, [owner, field, values](const at::Tensor& read) {
      if (field.count) {
        *field.count = static_cast<int64_t>(read.item<double>());
      } else {
        *field.tensor = read.to(values.device(), at::kFloat);
      }
    });
  }

  Optimizer& optimizer_;
};

at::Tensor value_of(const StateField& field) {
  return field.tensor ? *field.tensor : at::scalar_tensor(*field.count, at::kLong);
}

/// One of torch's own or ours: the same on all ranks.
class PlainOptimizerPart : public OptimizerPart {
 public:
  using OptimizerPart::OptimizerPart;

  void describe(const std::string& /*name*/, CheckpointContext& context) override {
    for (const auto& group : optimizer().param_groups()) {
      for (const auto& parameter : group.params()) {
        const auto found = optimizer().state().find(parameter.unsafeGetTensorImpl());
        if (found == optimizer().state().end() || !has_master(parameter)) {
          continue;
        }
        auto& state = static_cast<FusedState&>(*found->second);
        if (state.master.defined() && state.seen_version == parameter._version()) {
          context.add_master(parameter, state.master);
        }
      }
    }
  }

 protected:
  Optimizer& base() const override { return optimizer(); }

  std::vector<std::string> names(const CheckpointContext& context, size_t group) const override {
    std::vector<std::string> result;
    const auto& parameters = optimizer().param_groups()[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      result.push_back(context.name_of(parameters[i]).value_or(fallback_name(group, i)));
    }
    return result;
  }

  std::vector<Stepped> all_stepped(const CheckpointContext& context) const override {
    std::vector<Stepped> result;
    for (size_t g = 0; g < optimizer().param_groups().size(); ++g) {
      const auto& parameters = optimizer().param_groups()[g].params();
      const auto own_names = names(context, g);
      for (size_t i = 0; i < parameters.size(); ++i) {
        result.push_back({own_names[i], parameters[i], parameters[i],
                          has_master(parameters[i]) ? at::kFloat : parameters[i].scalar_type(), 0,
                          parameters[i].numel()});
      }
    }
    return result;
  }

  void save_field(const std::string& key, const Stepped& /*stepped*/, const StateField& field,
                  store::State& state) const override {
    const at::Tensor value = value_of(field);
    if (value.defined()) {
      state.add_alike(key, value);
    }
  }

  /// A master is what was saved as the parameter's values.
  void load_more(const Stepped& stepped, const CheckpointContext& context,
                 const std::shared_ptr<OptimizerParamState>& state,
                 store::LoadPlan& plan) const override {
    const auto key = context.key_of(stepped.parameter);
    if (!has_master(stepped.parameter) || !key || !plan.reader().has(*key)) {
      return;
    }
    const auto fused = std::static_pointer_cast<FusedState>(state);
    const at::Tensor& parameter = stepped.parameter;
    fused->master = at::empty_like(parameter, parameter.options().dtype(at::kFloat)).detach();
    plan.add_tensor(*key, fused->master);
    plan.then([fused, parameter] { fused->seen_version = parameter._version(); });
  }

 private:
  bool has_master(const at::Tensor& parameter) const {
    const auto* const fused = dynamic_cast<const detail::FusedOptimizer*>(&optimizer());
    return fused && fused->has_master(parameter);
  }
};

/// Every rank saves and loads the ranges that it owns.
class OssPart : public OptimizerPart {
 public:
  explicit OssPart(OssBase& oss) : OptimizerPart(oss), oss_(oss) {}

  void describe(const std::string& /*name*/, CheckpointContext& context) override {
    for (const auto& group : oss_.flat_groups()) {
      group->update_masters();
      context.add_shards(group);
    }
  }

  void load(const std::string& name, const CheckpointContext& context,
            store::LoadPlan& plan) override {
    OptimizerPart::load(name, context, plan);
    for (const auto& group : oss_.flat_groups()) {
      load_masters(*group, context, plan);
    }
    plan.then([this] {
      oss_.sharded_step().freeze_layout();
      for (const auto& group : oss_.flat_groups()) {
        group->publish_masters();
      }
    });
  }

 protected:
  Optimizer& base() const override { return oss_.base(); }

  std::vector<std::string> names(const CheckpointContext& context, size_t group) const override {
    std::unordered_map<const c10::TensorImpl*, std::string> own_names;
    for (const auto& flat_group : oss_.flat_groups()) {
      for (const auto& parameter : flat_group->parameters()) {
        own_names[parameter.tensor.unsafeGetTensorImpl()] = parameter.name;
      }
    }
    std::vector<std::string> result;
    const auto& parameters = optimizer().param_groups()[group].params();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto found = own_names.find(parameters[i].unsafeGetTensorImpl());
      const std::string own = found == own_names.end() ? fallback_name(group, i) : found->second;
      result.push_back(context.name_of(parameters[i]).value_or(own));
    }
    return result;
  }

  std::vector<Stepped> all_stepped(const CheckpointContext& context) const override {
    std::vector<Stepped> result;
    for (const auto& group : oss_.flat_groups()) {
      for (const auto& slice : group->slices()) {
        const auto& parameter = group->parameters()[slice.piece.parameter];
        result.push_back({context.name_of(parameter.tensor).value_or(parameter.name),
                          parameter.tensor, slice.values, slice.values.scalar_type(),
                          slice.piece.begin, slice.piece.end});
      }
    }
    return result;
  }

  void save_field(const std::string& key, const Stepped& stepped, const StateField& field,
                  store::State& state) const override {
    const at::Tensor value = value_of(field);
    if (!value.defined()) {
      return;
    }
    if (field.is_like_parameter) {
      state.add_range(key, store::layout_of(stepped.parameter), stepped.begin, stepped.end, value);
    } else if (stepped.begin == 0) {
      state.add_whole(key, value);  // all owners of the parameter have the same
    }
  }

 private:
  /// Parameters are saved as exactly as a rank has them, so master weights are loaded from there.
  static void load_masters(const shard::FlatGroup& group, const CheckpointContext& context,
                           store::LoadPlan& plan) {
    for (const auto& slice : group.slices()) {
      const at::Tensor& parameter = group.parameters()[slice.piece.parameter].tensor;
      const auto key = context.key_of(parameter);
      if (!group.bucket(slice.piece.bucket).has_master() || !key || !plan.reader().has(*key)) {
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

  OssBase& oss_;
};

}  // namespace

std::shared_ptr<CheckpointPart> make_part(Optimizer& optimizer) {
  if (auto* const oss = dynamic_cast<OssBase*>(&optimizer)) {
    return std::make_shared<OssPart>(*oss);
  }
  return std::make_shared<PlainOptimizerPart>(optimizer);
}

}  // namespace fairshard

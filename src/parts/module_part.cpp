#include <fairshard/parts/parts.h>

#include <c10/util/Exception.h>

namespace fairshard::parts {
namespace {

class ModulePart : public CheckpointPart {
 public:
  explicit ModulePart(ModuleAccess access) : access_(std::move(access)) {}

  void describe(const std::string& name, CheckpointContext& context) override {
    if (access_.wait) {
      access_.wait();
    }
    for (const ModuleItem& item : access_.items()) {
      if (item.is_parameter) {
        context.add_parameter(name, item.name, std::get<at::Tensor>(item.value));
      }
    }
  }

  void save(const std::string& name, const CheckpointContext& context,
            store::State& state) override {
    for (const ModuleItem& item : access_.items()) {
      const std::string key = c10::str(name, "/", item.name);
      if (const auto* const json = std::get_if<std::string>(&item.value)) {
        state.add_value(key, *json);
      } else {
        save_tensor(key, std::get<at::Tensor>(item.value), item.is_parameter, context, state);
      }
    }
  }

  bool can_copy() const override { return access_.can_copy; }

  void load(const std::string& name, const CheckpointContext& /*context*/,
            store::LoadPlan& plan) override {
    const auto values = std::make_shared<std::map<std::string, std::string>>();
    for (const ModuleItem& item : access_.items()) {
      const std::string key = c10::str(name, "/", item.name);
      if (const auto* const tensor = std::get_if<at::Tensor>(&item.value)) {
        plan.add_tensor(key, tensor->detach());
      } else {
        plan.add_value(key, [values, own = item.name](const std::string& json) {
          values->emplace(own, json);
        });
      }
    }
    plan.then([set = access_.set_values, values] {
      if (!values->empty()) {
        set(*values);
      }
    });
  }

 private:
  static void save_tensor(const std::string& key, const at::Tensor& tensor, bool is_parameter,
                          const CheckpointContext& context, store::State& state) {
    if (!is_parameter) {
      state.add_first(key, tensor);
    } else if (const auto* const slices = context.exact_slices_of(tensor)) {
      for (const auto& [piece, values] : *slices) {
        state.add_range(key, store::layout_of(tensor), piece.begin, piece.end, values);
      }
    } else {
      state.add_alike(key, context.master_of(tensor));
    }
  }

  ModuleAccess access_;
};

}  // namespace

Part make_module_part(ModuleAccess access) {
  return std::make_shared<ModulePart>(std::move(access));
}

}  // namespace fairshard::parts

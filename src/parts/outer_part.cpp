// What ranks keep of nodes that train apart.
#include "../store/json.h"
#include <fairshard/parts/parts.h>

#include <c10/util/Exception.h>

namespace fairshard::parts {
namespace {

using store::Json;

constexpr const char* kScalars = "scalars";

class OuterPart : public CheckpointPart {
 public:
  explicit OuterPart(std::shared_ptr<outer::Synchroniser> synchroniser)
      : synchroniser_(std::move(synchroniser)) {}

  void save(const std::string& name, const CheckpointContext& /*context*/,
            store::State& state) override {
    const outer::OuterState own = synchroniser_->state();
    for (const auto& [key, tensor] : own.tensors) {
      state.add_whole(store::own_key(name, state.rank(), key), tensor);
    }
    state.add_own_value(store::own_key(name, state.rank(), kScalars),
                        store::dump_json(Json(own.scalars), name));
  }

  void load(const std::string& name, const CheckpointContext& /*context*/,
            store::LoadPlan& plan) override {
    plan.expects_under(name + "/");  // also those of other ranks of the node
    const auto state = std::make_shared<outer::OuterState>();
    const std::string own = store::own_key(name, plan.rank(), "");
    for (const auto& key : plan.reader().names_under(own)) {
      plan.add_any(own + key,
                   [state, key](const at::Tensor& values) { state->tensors.emplace(key, values); });
    }
    plan.add_value(own + kScalars, [state, name](const std::string& text) {
      try {
        state->scalars = store::parse_json(text, name).get<std::map<std::string, double>>();
      } catch (const Json::exception& error) {
        TORCH_CHECK_VALUE(false, name, ": not numbers by name (", error.what(), ")");
      }
    });
    plan.then([synchroniser = synchroniser_, state] { synchroniser->load_state(*state); });
  }

 private:
  std::shared_ptr<outer::Synchroniser> synchroniser_;
};

}  // namespace

Part make_outer_part(std::shared_ptr<outer::Synchroniser> synchroniser) {
  return std::make_shared<OuterPart>(std::move(synchroniser));
}

}  // namespace fairshard::parts

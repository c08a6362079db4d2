// What ranks keep of nodes that train apart.
#include "../store/json.h"
#include "parts.h"

#include <c10/util/Exception.h>

namespace fairshard {
namespace {

using store::Json;

constexpr const char* kScalars = "scalars";

class SlowMoPart : public CheckpointPart {
 public:
  explicit SlowMoPart(SlowMoBase& slowmo) : slowmo_(slowmo) {}

  void save(const std::string& name, const CheckpointContext& /*context*/,
            store::State& state) override {
    const outer::OuterState outer = slowmo_.state();
    for (const auto& [key, tensor] : outer.tensors) {
      state.add_whole(store::own_key(name, state.rank(), key), tensor);
    }
    state.add_own_value(store::own_key(name, state.rank(), kScalars),
                        store::dump_json(Json(outer.scalars), name));
  }

  void load(const std::string& name, const CheckpointContext& /*context*/,
            store::LoadPlan& plan) override {
    for (const auto& key : plan.reader().names_under(name + "/")) {
      plan.expects(c10::str(name, "/", key));  // also those of other ranks of the node
    }
    for (const auto& key : plan.reader().value_names_under(name + "/")) {
      plan.expects(c10::str(name, "/", key));
    }
    const auto outer = std::make_shared<outer::OuterState>();
    const std::string own = store::own_key(name, plan.rank(), "");
    for (const auto& key : plan.reader().names_under(own)) {
      plan.add_any(own + key,
                   [outer, key](const at::Tensor& values) { outer->tensors.emplace(key, values); });
    }
    plan.add_value(own + kScalars, [outer, name](const std::string& text) {
      try {
        outer->scalars = store::parse_json(text, name).get<std::map<std::string, double>>();
      } catch (const Json::exception& error) {
        TORCH_CHECK_VALUE(false, name, ": not numbers by name (", error.what(), ")");
      }
    });
    plan.then([this, outer] { slowmo_.load_state(*outer); });
  }

 private:
  SlowMoBase& slowmo_;
};

}  // namespace

std::shared_ptr<CheckpointPart> make_part(SlowMoBase& slowmo) {
  return std::make_shared<SlowMoPart>(slowmo);
}

}  // namespace fairshard

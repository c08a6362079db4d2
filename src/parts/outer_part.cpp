// What nodes that train apart keep: ranges under "part/parameter/field", counts under
// "part/scalars".
#include "../store/json.h"
#include <fairshard/parts/parts.h>

#include <c10/util/Exception.h>

namespace fairshard::parts {
namespace {

using outer::OuterRange;
using store::Json;

std::string key_of(const std::string& part, const OuterRange& range) {
  return c10::str(part, "/", range.name, "/", range.field);
}

store::Layout layout_of(const OuterRange& range) {
  store::Layout layout = store::layout_of(range.parameter);
  layout.dtype = range.values.scalar_type();
  if (!range.is_in_memory_order) {
    layout.strides = store::row_major(layout.sizes);
  }
  return layout;
}

class OuterPart : public CheckpointPart {
 public:
  explicit OuterPart(std::shared_ptr<outer::Synchroniser> synchroniser)
      : synchroniser_(std::move(synchroniser)) {}

  void save(const std::string& name, const CheckpointContext& /*context*/,
            store::State& state) override {
    for (const OuterRange& range : synchroniser_->ranges()) {
      state.add_range(key_of(name, range), layout_of(range), range.begin, range.end, range.values);
    }
    state.add_value(name + "/scalars", store::dump_json(Json(synchroniser_->scalars()), name));
  }

  void load(const std::string& name, const CheckpointContext& /*context*/,
            store::LoadPlan& plan) override {
    plan.expects_under(name + "/");  // also what other ranks of the node need
    for (const OuterRange& range : synchroniser_->wanted_ranges()) {
      const std::string key = key_of(name, range);
      if (plan.reader().has(key) || !outer::Synchroniser::is_optional(range.field)) {
        plan.add_range(key, layout_of(range), range.begin, range.end,
                       [synchroniser = synchroniser_, range](const at::Tensor& values) {
                         range.values.copy_(values);
                         synchroniser->take_range(range);
                       });
      }
    }
    const auto scalars = std::make_shared<std::map<std::string, double>>();
    plan.add_value(name + "/scalars", [scalars, name](const std::string& text) {
      try {
        *scalars = store::parse_json(text, name).get<std::map<std::string, double>>();
      } catch (const Json::exception& error) {
        TORCH_CHECK_VALUE(false, name, ": not numbers by name (", error.what(), ")");
      }
    });
    plan.then([synchroniser = synchroniser_, scalars] {
      if (!scalars->empty()) {
        synchroniser->finish_loading(*scalars);
      }
    });
  }

 private:
  std::shared_ptr<outer::Synchroniser> synchroniser_;
};

}  // namespace

Part make_outer_part(std::shared_ptr<outer::Synchroniser> synchroniser) {
  return std::make_shared<OuterPart>(std::move(synchroniser));
}

}  // namespace fairshard::parts

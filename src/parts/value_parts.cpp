// Random generators, tensors, values, and groups of parts.
#include "../store/json.h"
#include "rng_state.h"
#include <fairshard/parts/parts.h>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>

namespace fairshard::parts {
namespace {

using store::Json;

class TensorPart : public CheckpointPart {
 public:
  explicit TensorPart(at::Tensor tensor) : tensor_(std::move(tensor)) {}

  void save(const std::string& name, const CheckpointContext& /*context*/,
            store::State& state) override {
    state.add_alike(name, tensor_.resolve_conj().resolve_neg());  // memory is written as it is
  }
  void load(const std::string& name, const CheckpointContext& /*context*/,
            store::LoadPlan& plan) override {
    plan.add_tensor(name, tensor_.detach());
  }

 private:
  at::Tensor tensor_;
};

std::string device_name(const at::Device& device) {
  return device.is_cpu() ? "cpu" : c10::str("cuda-", static_cast<int>(device.index()));
}

class RngPart : public CheckpointPart {
 public:
  void save(const std::string& name, const CheckpointContext& /*context*/,
            store::State& state) override {
    const RngState now;
    for (const auto& [generator, values] : now.states()) {
      state.add_whole(store::own_key(name, state.rank(), device_name(generator.device())), values);
    }
  }

  void load(const std::string& name, const CheckpointContext& /*context*/,
            store::LoadPlan& plan) override {
    plan.expects_under(name + "/");  // also those of other ranks, and of GPUs that are not here
    std::vector<at::Device> devices{at::Device(at::kCPU)};
    for (at::DeviceIndex i = 0; at::hasCUDA() && i < at::detail::getCUDAHooks().deviceCount();
         ++i) {
      devices.emplace_back(at::kCUDA, i);
    }
    for (const at::Device& device : devices) {
      const std::string key = store::own_key(name, plan.rank(), device_name(device));
      if (plan.expects(key)) {
        plan.add_any(key, [device](const at::Tensor& values) {
          at::Generator generator = at::globalContext().defaultGenerator(device);
          const std::lock_guard lock(generator.mutex());
          generator.set_state(values);
        });
      }
    }
  }
};

/// Calls `visit` with the key of every tensor in a value.
template <typename Visit>
void visit_tensors(const Json& json, const Visit& visit) {
  if (json.is_object() && json.size() == 1 && json.contains("tensor") &&
      json["tensor"].is_string()) {
    visit(json["tensor"].get<std::string>());
  } else if (json.is_structured()) {
    for (const Json& item : json) {
      visit_tensors(item, visit);
    }
  }
}

/// A part that is one JSON value under the part's own name, and its tensors under names that begin
/// so.
class ValuePart : public CheckpointPart {
 public:
  ValuePart(GetTree get, SetTree set) : get_(std::move(get)), set_(std::move(set)) {}

  void save(const std::string& name, const CheckpointContext& /*context*/,
            store::State& state) override {
    const Tree tree = get_(name);
    for (const auto& [key, tensor] : tree.tensors) {
      state.add_alike(key, tensor);
    }
    state.add_value(name, tree.json);
  }

  void load(const std::string& name, const CheckpointContext& /*context*/,
            store::LoadPlan& plan) override {
    const auto tree = std::make_shared<Tree>();
    plan.add_value(name, [](const std::string& /*json*/) {});
    const auto json = plan.reader().value(name);
    if (!json) {
      return;
    }
    tree->json = *json;
    visit_tensors(store::parse_json(*json, name), [&](const std::string& key) {
      plan.add_any(key,
                   [tree, key](const at::Tensor& tensor) { tree->tensors.emplace(key, tensor); });
    });
    plan.then([set = set_, name, tree] { set(name, *tree); });
  }

 private:
  GetTree get_;
  SetTree set_;
};

class GroupPart : public CheckpointPart {
 public:
  using Parts = std::vector<std::pair<std::string, Part>>;
  explicit GroupPart(std::function<Parts()> list) : list_(std::move(list)) {}

  void describe(const std::string& name, CheckpointContext& context) override {
    for (const auto& [key, part] : list_()) {
      part->describe(c10::str(name, "/", key), context);
    }
  }
  void save(const std::string& name, const CheckpointContext& context,
            store::State& state) override {
    for (const auto& [key, part] : list_()) {
      part->save(c10::str(name, "/", key), context, state);
    }
  }
  bool can_copy() const override {
    const Parts parts = list_();
    return std::all_of(parts.begin(), parts.end(),
                       [](const auto& part) { return part.second->can_copy(); });
  }
  void load(const std::string& name, const CheckpointContext& context,
            store::LoadPlan& plan) override {
    for (const auto& [key, part] : list_()) {
      part->load(c10::str(name, "/", key), context, plan);
    }
  }

 private:
  std::function<Parts()> list_;
};

}  // namespace

Part make_tensor_part(at::Tensor tensor) { return std::make_shared<TensorPart>(std::move(tensor)); }

Part make_rng_part() { return std::make_shared<RngPart>(); }

Part make_value_part(GetTree get, SetTree set) {
  return std::make_shared<ValuePart>(std::move(get), std::move(set));
}

Part make_group_part(std::function<std::vector<std::pair<std::string, Part>>()> list) {
  return std::make_shared<GroupPart>(std::move(list));
}

}  // namespace fairshard::parts

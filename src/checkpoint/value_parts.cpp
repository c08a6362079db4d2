// Scalers, schedules, random generators, tensors and plain values.
#include "../nn/rng_state.h"
#include "../store/json.h"
#include "parts.h"
#include <fairshard/checkpoint/value.h>
#include <fairshard/comm/reason.h>

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <utility>

namespace fairshard {
namespace {

using store::Json;
using store::parse_json;

/// A part that is one JSON value under the part's own name.
class ValuePart : public CheckpointPart {
 public:
  ValuePart(std::function<Json()> get, std::function<void(const Json&)> set)
      : get_(std::move(get)), set_(std::move(set)) {}

  void save(const std::string& name, const CheckpointContext& /*context*/,
            store::State& state) override {
    state.add_value(name, store::dump_json(get_(), "value '" + name + "'"));
  }

  void load(const std::string& name, const CheckpointContext& /*context*/,
            store::LoadPlan& plan) override {
    plan.add_value(name, [set = set_, name](const std::string& text) {
      try {
        set(parse_json(text, "value '" + name + "'"));
      } catch (const std::exception& error) {
        TORCH_CHECK_VALUE(false, "value '", name, "' of the checkpoint is ", text, ": ",
                          comm::reason_of(error));
      }
    });
  }

 private:
  std::function<Json()> get_;
  std::function<void(const Json&)> set_;
};

Json to_json(const detail::Scalar& scalar) {
  return std::visit(
      [](const auto& value) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
          // JSON has no infinity; the best loss before the first one often is.
          return std::isfinite(value) ? Json(value) : Json{{"float", c10::str(value)}};
        } else {
          return value;
        }
      },
      scalar);
}

detail::Scalar from_json(const Json& json) {
  if (json.is_boolean()) {
    return json.get<bool>();
  }
  if (json.is_number_unsigned()) {
    return json.get<uint64_t>();
  }
  if (json.is_number_integer()) {
    return json.get<int64_t>();
  }
  if (json.is_object()) {
    return std::stod(json.at("float").get<std::string>());
  }
  return json.is_number() ? detail::Scalar(json.get<double>())
                          : detail::Scalar(json.get<std::string>());
}

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
    for (const auto& key : plan.reader().names_under(name + "/")) {
      plan.expects(
          c10::str(name, "/", key));  // also those of other ranks, and of GPUs that are not here
    }
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

}  // namespace

std::shared_ptr<CheckpointPart> make_part(ShardedGradScaler& scaler) {
  return std::make_shared<ValuePart>(
      [&scaler] {
        return Json{{"scale", scaler.get_scale()},
                    {"growth_factor", scaler.get_growth_factor()},
                    {"backoff_factor", scaler.get_backoff_factor()},
                    {"growth_interval", scaler.get_growth_interval()},
                    {"_growth_tracker", scaler.get_growth_tracker()}};
      },
      [&scaler](const Json& json) {
        scaler.set_progress(json.at("scale").get<double>(),
                            json.at("_growth_tracker").get<int64_t>());
      });
}

std::shared_ptr<CheckpointPart> make_part(LearningRate& rate) {
  return std::make_shared<ValuePart>(
      [&rate] { return Json{{"last_epoch", rate.steps()}}; },
      [&rate](const Json& json) { rate.set_steps(json.at("last_epoch").get<int64_t>()); });
}

std::shared_ptr<CheckpointPart> make_part(const at::Tensor& tensor) {
  return std::make_shared<TensorPart>(tensor);
}

std::string detail::text_of(const Scalar& scalar) { return to_json(scalar).dump(); }

std::shared_ptr<CheckpointPart> detail::make_value_part(const ValueAccess& access) {
  const auto to_text = [get = access.get, is_vector = access.is_vector] {
    Json items = Json::array();
    for (const Scalar& scalar : get()) {
      items.push_back(to_json(scalar));
    }
    return is_vector ? items : items.at(0);
  };
  const auto from_text = [set = access.set, is_vector = access.is_vector](const Json& json) {
    const std::string what = "it";
    TORCH_CHECK_VALUE(json.is_array() == is_vector, is_vector ? "a list" : "a single value",
                      " is wanted");
    std::vector<Scalar> scalars;
    for (const Json& item : is_vector ? json : Json::array({json})) {
      scalars.push_back(from_json(item));
    }
    set(scalars, what);
  };
  return std::make_shared<ValuePart>(to_text, from_text);
}

std::shared_ptr<CheckpointPart> make_rng_part() { return std::make_shared<RngPart>(); }

}  // namespace fairshard

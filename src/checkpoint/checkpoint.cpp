// What a Checkpoint knows of modules, optimizers and plain values.
#include "../optim/optimizer_access.h"
#include "../store/json.h"
#include <fairshard/checkpoint.h>
#include <fairshard/comm/reason.h>
#include <fairshard/nn/offload_model.h>

#include <c10/util/Exception.h>

#include <cmath>

namespace fairshard {
namespace {

using store::Json;

std::vector<parts::ModuleItem> items_of(const torch::nn::Module& module) {
  std::vector<parts::ModuleItem> items;
  for (const auto& item : module.named_parameters()) {
    items.push_back({item.key(), item.value(), /*is_parameter=*/true});
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) {
      items.push_back({item.key(), item.value()});
    }
  }
  return items;
}

parts::Part json_part(std::function<Json()> get, std::function<void(const Json&)> set) {
  return parts::make_value_part(
      [get = std::move(get)](const std::string& key) {
        return parts::Tree{store::dump_json(get(), "value '" + key + "'"), {}};
      },
      [set = std::move(set)](const std::string& key, const parts::Tree& tree) {
        try {
          set(store::parse_json(tree.json, "value '" + key + "'"));
        } catch (const std::exception& error) {
          TORCH_CHECK_VALUE(false, "value '", key, "' of the checkpoint is ", tree.json, ": ",
                            comm::reason_of(error));
        }
      });
}

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

}  // namespace

std::string detail::text_of(const Scalar& scalar) { return to_json(scalar).dump(); }

Checkpoint& Checkpoint::add(const std::string& name, std::shared_ptr<CheckpointPart> part) {
  add_part(name, std::move(part));
  return *this;
}

Checkpoint& Checkpoint::add_module(const std::string& name, torch::nn::Module& module,
                                   OffloadModel* offload) {
  parts::ModuleAccess access;
  access.items = [&module] { return items_of(module); };
  if (offload) {
    access.wait = [offload] { offload->wait_for_step(); };
    access.can_copy = false;
  }
  return add(name, parts::make_module_part(access));
}

Checkpoint& Checkpoint::add(const std::string& name, torch::optim::Optimizer& optimizer) {
  return add(name, parts::make_optimizer_part(access_to(optimizer)));
}

Checkpoint& Checkpoint::add(const std::string& name, ShardedGradScaler& scaler) {
  return add(name, json_part(
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
                       }));
}

Checkpoint& Checkpoint::add(const std::string& name, LearningRate& rate) {
  return add(name, json_part([&rate] { return Json{{"last_epoch", rate.steps()}}; },
                             [&rate](const Json& json) {
                               rate.set_steps(json.at("last_epoch").get<int64_t>());
                             }));
}

Checkpoint& Checkpoint::add(const std::string& name, SlowMoBase& slowmo) {
  set_nodes(slowmo.synchroniser().nodes());
  return add(name, parts::make_outer_part(slowmo.loop_.synchroniser()));
}

Checkpoint& Checkpoint::add(const std::string& name, Ema& ema) {
  // Not as a module: its parameters would have the names of those that an optimizer looks for.
  const auto list = [&ema] {
    std::vector<std::pair<std::string, parts::Part>> all;
    for (const auto& [own, average] : ema.averages()) {
      all.emplace_back(own, parts::make_tensor_part(average));
    }
    const auto set = [&ema](const Json& json) {
      ema.set_updates(store::to_count(json, "updates"));
    };
    // A slash: no parameter is named so.
    all.emplace_back("state/updates", json_part([&ema] { return Json(ema.updates()); }, set));
    return all;
  };
  return add(name, parts::make_group_part(list));
}

Checkpoint& Checkpoint::add(const std::string& name, ResumableSampler& sampler) {
  return add(name, json_part(
                       [&sampler] {
                         return Json{{"samples", sampler.samples()},
                                     {"seed", sampler.options().seed()},
                                     {"epoch", sampler.epoch()},
                                     {"position", sampler.position()}};
                       },
                       [&sampler](const Json& json) {
                         const auto samples = json.at("samples").get<int64_t>();
                         TORCH_CHECK_VALUE(samples == sampler.samples(), "a sampler of ", samples,
                                           " samples, but there are ", sampler.samples());
                         sampler.go_to(json.at("epoch").get<int64_t>(),
                                       json.at("position").get<int64_t>());
                         sampler.set_seed(json.at("seed").get<uint64_t>());
                       }));
}

Checkpoint& Checkpoint::add(const std::string& name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.defined() && tensor.layout() == at::kStrided, "the part '", name,
                    "' of a checkpoint must be a dense tensor, but is ",
                    tensor.defined() ? c10::str(tensor.layout()) : "not defined");
  return add(name, parts::make_tensor_part(tensor));
}

Checkpoint& Checkpoint::add_rng(const std::string& name) {
  return add(name, parts::make_rng_part());
}

Checkpoint& Checkpoint::add_value(const std::string& name, const detail::ValueAccess& access) {
  const auto get = [get = access.get, is_vector = access.is_vector] {
    Json items = Json::array();
    for (const detail::Scalar& scalar : get()) {
      items.push_back(to_json(scalar));
    }
    return is_vector ? items : items.at(0);
  };
  const auto set = [set = access.set, is_vector = access.is_vector](const Json& json) {
    TORCH_CHECK_VALUE(json.is_array() == is_vector, is_vector ? "a list" : "a single value",
                      " is wanted");
    std::vector<detail::Scalar> scalars;
    for (const Json& item : is_vector ? json : Json::array({json})) {
      scalars.push_back(from_json(item));
    }
    set(scalars, "it");
  };
  return add(name, json_part(get, set));
}

}  // namespace fairshard

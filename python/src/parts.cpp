// parts/ for Python.
#include "bindings.h"
#include <fairshard/parts/checkpoint_base.h>
#include <fairshard/parts/parts.h>

#include <pybind11/functional.h>
#include <pybind11/stl.h>

namespace fairshard::python {

using parts::Value;

namespace {

/// Parameter groups as (options, parameters, names).
using Groups =
    std::vector<std::tuple<std::string, std::vector<at::Tensor>, std::vector<std::string>>>;
/// A module's items as (name, value, is_parameter).
using Items = std::vector<std::tuple<std::string, Value, bool>>;
using TensorsByKey = std::map<std::string, at::Tensor>;

void bind_parts(py::module_& m) {
  m.def(
      "module_part",
      [](const std::function<Items()>& items, const std::function<void()>& wait,
         const std::function<void(const std::map<std::string, std::string>&)>& set_values,
         bool can_copy) {
        const auto listed = [items] {
          std::vector<parts::ModuleItem> result;
          for (auto& [name, value, is_parameter] : items()) {
            result.push_back({name, value, is_parameter});
          }
          return result;
        };
        return parts::make_module_part({listed, wait, set_values, can_copy});
      },
      py::kw_only(), py::arg("items"), py::arg("wait"), py::arg("set_values"), py::arg("can_copy"));
  m.def(
      "optimizer_part",
      [](const std::function<Groups()>& groups,
         const decltype(parts::OptimizerAccess::state)& state,
         const std::function<void(const std::string&)>& set_options,
         const decltype(parts::OptimizerAccess::set_states)& set_states,
         const decltype(parts::OptimizerAccess::required)& required,
         const std::shared_ptr<shard::ShardedStep>& sharded,
         const std::function<std::shared_ptr<scale::GainMeter>()>& meter) {
        parts::OptimizerAccess access;
        access.groups = [groups] {
          std::vector<parts::OptimizerGroup> result;
          for (auto& [options, parameters, names] : groups()) {
            result.push_back({options, parameters, names});
          }
          return result;
        };
        access.state = state;
        access.set_options = set_options;
        access.set_states = set_states;
        access.required = required;
        access.sharded = sharded;
        access.meter = meter;
        return parts::make_optimizer_part(access);
      },
      py::kw_only(), py::arg("groups"), py::arg("state"), py::arg("set_options"),
      py::arg("set_states"), py::arg("required"), py::arg("sharded"), py::arg("meter"));
  m.def(
      "value_part",
      [](const std::function<std::pair<std::string, TensorsByKey>(const std::string&)>& get,
         const std::function<void(const std::string&, const TensorsByKey&)>& set) {
        return parts::make_value_part(
            [get](const std::string& key) {
              auto [json, tensors] = get(key);
              return parts::Tree{json, tensors};
            },
            [set](const std::string& /*key*/, const parts::Tree& tree) {
              set(tree.json, tree.tensors);
            });
      },
      py::kw_only(), py::arg("get"), py::arg("set"));
  m.def("outer_part", &parts::make_outer_part);
  m.def("rng_part", &parts::make_rng_part);
  m.def("tensor_part", &parts::make_tensor_part);
  m.def("group_part", &parts::make_group_part);
}

}  // namespace

void init_parts(py::module_& module) {
  py::module_ m = module.def_submodule("parts");
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<CheckpointPart, std::shared_ptr<CheckpointPart>>(m, "Part");
  bind_parts(m);
  py::class_<CheckpointBase, std::shared_ptr<CheckpointBase>>(m, "Checkpoint")
      .def(py::init([](const std::optional<comm::Group>& group, const std::string& directory,
                       int64_t keep, double timeout_s) {
             return make_released<CheckpointBase>(
                 group, directory, CheckpointOptions().keep(keep).timeout_s(timeout_s));
           }),
           py::arg("group"), py::arg("directory"), py::arg("keep"), py::arg("timeout_s"))
      .def("add_part", &CheckpointBase::add_part)
      .def("set_nodes",
           [](CheckpointBase& self, const outer::Synchroniser& synchroniser) {
             self.set_nodes(synchroniser.nodes());
           })
      .def("save", &CheckpointBase::save, released)
      .def("save_async", &CheckpointBase::save_async, released)
      .def("wait", &CheckpointBase::wait, released)
      .def("load", &CheckpointBase::load, released, py::arg("strict"))
      .def("load_from", &CheckpointBase::load_from, released, py::arg("directory"),
           py::arg("strict"));
}

}  // namespace fairshard::python

// store/ for Python.
#include "bindings.h"
#include <fairshard/store/directory.h>
#include <fairshard/store/load_plan.h>
#include <fairshard/store/reader.h>
#include <fairshard/store/safetensors.h>
#include <fairshard/store/saver.h>

#include <pybind11/functional.h>

namespace fairshard::python {

using store::LoadPlan;
using store::LoadReport;
using store::Reader;
using store::SafetensorsFile;
using store::Saver;
using store::State;

namespace {

void bind_safetensors(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<SafetensorsFile>(m, "SafetensorsFile")
      .def(py::init<const std::string&>(), released)
      .def_property_readonly("metadata",
                             [](const SafetensorsFile& file) { return file.header().metadata; })
      .def_property_readonly("names",
                             [](const SafetensorsFile& file) {
                               std::vector<std::string> names;
                               for (const auto& tensor : file.header().tensors) {
                                 names.push_back(tensor.name);
                               }
                               return names;
                             })
      .def("read", &SafetensorsFile::read, released);
  m.def(
      "write_safetensors",
      [](const std::string& path, const std::map<std::string, at::Tensor>& tensors,
         const store::Metadata& metadata) {
        std::vector<store::TensorToWrite> items;
        for (const auto& [name, tensor] : tensors) {
          items.push_back({name, tensor.scalar_type(), tensor.sizes().vec(),
                           [tensor = tensor] { return tensor; }});
        }
        store::write_safetensors(path, items, metadata);
      },
      released, py::arg("path"), py::arg("tensors"), py::arg("metadata") = store::Metadata());
}

void bind_saving(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<State>(m, "State", "A rank's share of a checkpoint.")
      .def(py::init<int, int>(), py::arg("rank"), py::arg("ranks"))
      .def_property_readonly("rank", &State::rank)
      .def("add_alike", &State::add_alike)
      .def("add_first", &State::add_first)
      .def("add_range",
           [](State& state, const std::string& key, const at::Tensor& whole, int64_t begin,
              int64_t end, const at::Tensor& values) {
             state.add_range(key, store::layout_of(whole), begin, end, values);
           })
      .def("add_whole", &State::add_whole)
      .def("add_value", &State::add_value)
      .def("add_own_value", &State::add_own_value);

  py::class_<Saver, std::shared_ptr<Saver>>(m, "Saver")
      .def(py::init([](const std::optional<comm::Group>& group, const std::string& root,
                       int64_t keep, double timeout_s) {
             return make_released<Saver>(group, root,
                                         store::SaverOptions().keep(keep).timeout_s(timeout_s));
           }),
           py::arg("group"), py::arg("root"), py::arg("keep"), py::arg("timeout_s"))
      .def("save", &Saver::save, released)
      .def("save_async", &Saver::save_async, released)
      .def("latest", &Saver::latest, released)
      .def("claim", &Saver::claim, released)
      .def("together", &Saver::together, released)
      .def("wait", &Saver::wait, released)
      .def("is_done", &Saver::is_done);
}

void bind_loading(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<Reader>(m, "Reader", "One complete checkpoint.")
      .def(py::init<std::string>(), released)
      .def_property_readonly("directory", &Reader::directory)
      .def_property_readonly("step", [](const Reader& reader) { return reader.manifest().step; })
      .def_property_readonly("world_size",
                             [](const Reader& reader) { return reader.manifest().world_size; })
      .def("has", &Reader::has)
      .def("shape",
           [](const Reader& reader, const std::string& key) {
             return reader.manifest().tensors.at(key).layout.sizes;
           })
      .def("names_under", &Reader::names_under)
      .def("value_names_under", &Reader::value_names_under)
      .def("value", &Reader::value)
      .def("read", py::overload_cast<const std::string&>(&Reader::read), released);

  py::class_<LoadReport>(m, "LoadReport", "What was loaded, and which keys did not fit.")
      .def_readonly("step", &LoadReport::step, "The step that was saved.")
      .def_readonly("missing", &LoadReport::missing, "Asked for, but not in the checkpoint.")
      .def_readonly("unexpected", &LoadReport::unexpected,
                    "In a part of the checkpoint that was asked for, but not asked for.");

  py::class_<LoadPlan>(m, "LoadPlan", "Requests that are looked at together, then carried out.")
      .def(py::init<Reader&, int, int>(), py::keep_alive<1, 2>(), py::arg("reader"),
           py::arg("rank"), py::arg("ranks"))
      .def_property_readonly("rank", &LoadPlan::rank)
      .def_property_readonly("reader", &LoadPlan::reader)
      .def("add_part", &LoadPlan::add_part)
      .def("add_range",
           [](LoadPlan& plan, const std::string& key, const at::Tensor& whole, at::ScalarType dtype,
              int64_t begin, int64_t end, LoadPlan::Take take) {
             store::Layout layout = store::layout_of(whole);
             layout.dtype = dtype;
             plan.add_range(key, layout, begin, end, std::move(take));
           })
      .def("add_tensor", &LoadPlan::add_tensor)
      .def("add_any", &LoadPlan::add_any)
      .def("add_value", &LoadPlan::add_value)
      .def("add_optional_value", &LoadPlan::add_optional_value)
      .def("expects", &LoadPlan::expects)
      .def("then", &LoadPlan::then)
      .def("check", &LoadPlan::check, released, py::arg("strict"))
      .def("take", &LoadPlan::take, released)
      .def("finish", &LoadPlan::finish, released)
      .def("run", &LoadPlan::run, released, py::arg("strict"));
}

}  // namespace

void init_store(py::module_& module) {
  py::module_ m = module.def_submodule("store");
  bind_safetensors(m);
  bind_saving(m);
  bind_loading(m);
  m.def("node_prefix", &store::node_prefix);
  m.def("own_key", &store::own_key);
  m.def("checkpoint_name", &store::checkpoint_name);
  m.def("list_checkpoints", &store::list_checkpoints);
  m.def("latest_checkpoint", &store::latest_checkpoint);
}

}  // namespace fairshard::python

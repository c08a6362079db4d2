// store/ for Python.
#include "bindings.h"
#include <fairshard/store/directory.h>
#include <fairshard/store/load_plan.h>
#include <fairshard/store/reader.h>
#include <fairshard/store/safetensors.h>

#include <pybind11/functional.h>

namespace fairshard::python {

using store::LoadReport;
using store::Reader;
using store::SafetensorsFile;

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

void bind_loading(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<Reader>(m, "Reader", "One complete checkpoint.")
      .def(py::init<std::string>(), released)
      .def_property_readonly("directory", &Reader::directory)
      .def_property_readonly("step", [](const Reader& reader) { return reader.manifest().step; })
      .def_property_readonly("world_size",
                             [](const Reader& reader) { return reader.manifest().world_size; })
      .def("names_under", &Reader::names_under)
      .def("value_names_under", &Reader::value_names_under)
      .def("value", &Reader::value)
      .def("read", py::overload_cast<const std::string&>(&Reader::read), released);

  py::class_<LoadReport>(m, "LoadReport", "What was loaded, and which keys did not fit.")
      .def_readonly("step", &LoadReport::step, "The step that was saved.")
      .def_readonly("missing", &LoadReport::missing, "Asked for, but not in the checkpoint.")
      .def_readonly("unexpected", &LoadReport::unexpected,
                    "In a part of the checkpoint that was asked for, but not asked for.");
}

}  // namespace

void init_store(py::module_& module) {
  py::module_ m = module.def_submodule("store");
  bind_safetensors(m);
  bind_loading(m);
  m.def("list_checkpoints", &store::list_checkpoints);
  m.def("latest_checkpoint", &store::latest_checkpoint);
}

}  // namespace fairshard::python

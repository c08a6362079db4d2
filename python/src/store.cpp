// store/ for Python.
#include "bindings.h"
#include <fairshard/store/directory.h>
#include <fairshard/store/load_plan.h>
#include <fairshard/store/reader.h>
#include <fairshard/store/safetensors.h>
#include <fairshard/store/saver.h>

#include <pybind11/functional.h>

#include <tuple>

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

using StoredTensors = std::map<std::string, std::tuple<at::ScalarType, std::vector<int64_t>>>;

/// Dtypes and sizes by keys.
StoredTensors stored_tensors(const Reader& reader) {
  StoredTensors result;
  for (const auto& [key, entry] : reader.manifest().tensors) {
    result.emplace(key, std::tuple(entry.layout.dtype, entry.layout.sizes));
  }
  return result;
}

/// A range of a row-major tensor: its key, the sizes of the whole, where it begins, and its values.
using OwnRange = std::tuple<std::string, std::vector<int64_t>, int64_t, at::Tensor>;

/// Saves what ranks have of tensors that others, too, have a part of. Collective; blocks.
void save_ranges(const std::optional<comm::Group>& group, const std::string& root, int64_t step,
                 const std::vector<OwnRange>& ranges,
                 const std::map<std::string, std::string>& values) {
  store::Saver saver(group, root);
  store::State state = saver.new_state();
  for (const auto& [key, sizes, begin, part] : ranges) {
    const store::Layout whole{part.scalar_type(), sizes, store::row_major(sizes)};
    state.add_range(key, whole, begin, begin + part.numel(), part);
  }
  for (const auto& [key, json] : values) {
    state.add_own_value(key, json);
  }
  saver.save(step, std::move(state));
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
      .def_property_readonly("tensors", &stored_tensors)
      .def_property_readonly("values",
                             [](const Reader& reader) { return reader.manifest().values; })
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
  m.def("save_ranges", &save_ranges, py::call_guard<py::gil_scoped_release>(), py::arg("group"),
        py::arg("root"), py::arg("step"), py::arg("ranges"), py::arg("values"));
  m.def("list_checkpoints", &store::list_checkpoints);
  m.def("latest_checkpoint", &store::latest_checkpoint);
}

}  // namespace fairshard::python

// shard/ for Python.
#include "bindings.h"
#include <fairshard/shard/agree.h>
#include <fairshard/shard/clip.h>
#include <fairshard/shard/flat_parameters.h>
#include <fairshard/shard/grad_reducer.h>

namespace fairshard::python {

using shard::FlatParameters;
using shard::GradientMode;
using shard::GradReducer;
using shard::Parameter;

namespace {

std::vector<Parameter> to_parameters(const std::vector<std::string>& names,
                                     const std::vector<at::Tensor>& tensors,
                                     const std::vector<int64_t>& groups) {
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < tensors.size(); ++i) {
    parameters.push_back({names.at(i), tensors[i], groups.empty() ? 0 : groups.at(i)});
  }
  return parameters;
}

struct SliceInfo {
  size_t parameter;
  size_t bucket;
  int64_t begin;
  int64_t end;
  int64_t offset;
  at::Tensor values;
};

std::vector<SliceInfo> slices_of(const FlatParameters& flat, int rank) {
  std::vector<SliceInfo> result;
  for (const auto& piece : flat.plan().pieces(rank)) {
    const int64_t start = rank * flat.plan().range_length(piece.bucket) + piece.offset;
    result.push_back(
        {piece.parameter, piece.bucket, piece.begin, piece.end, piece.offset,
         flat.bucket(piece.bucket).narrow(0, start, piece.end - piece.begin).detach()});
  }
  return result;
}

std::vector<std::optional<at::Tensor>> gradients_of(const FlatParameters& flat) {
  std::vector<std::optional<at::Tensor>> result;
  for (const auto& slice : flat.slices()) {
    const at::Tensor gradient = flat.gradient_of(slice);
    result.push_back(gradient.defined() ? std::optional(gradient) : std::nullopt);
  }
  return result;
}

}  // namespace

void init_shard(py::module_& module) {
  py::module_ m = module.def_submodule("shard");
  const auto released = py::call_guard<py::gil_scoped_release>();

  py::class_<SliceInfo>(m, "Slice", "A part of a parameter that one rank owns.")
      .def_readonly("parameter", &SliceInfo::parameter)
      .def_readonly("bucket", &SliceInfo::bucket)
      .def_readonly("begin", &SliceInfo::begin)
      .def_readonly("end", &SliceInfo::end)
      .def_readonly("offset", &SliceInfo::offset)
      .def_readonly("values", &SliceInfo::values);

  py::class_<FlatParameters, std::shared_ptr<FlatParameters>>(m, "FlatParameters")
      .def(py::init([](const comm::Group& group, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& groups,
                       int64_t bucket_bytes) {
             return make_released<FlatParameters>(group, to_parameters(names, tensors, groups),
                                                  shard::PlanOptions().bucket_bytes(bucket_bytes));
           }),
           released, py::arg("group"), py::arg("names"), py::arg("tensors"), py::arg("groups"),
           py::arg("bucket_bytes"))
      .def_property_readonly("parameters",
                             [](const FlatParameters& flat) {
                               std::vector<std::tuple<std::string, at::Tensor, int64_t>> result;
                               for (const auto& p : flat.parameters()) {
                                 result.emplace_back(p.name, p.tensor, p.group);
                               }
                               return result;
                             })
      .def("slices", &slices_of, py::arg("rank"))
      .def("gradients", &gradients_of, "The gradient of each of this rank's slices, or None.")
      .def("range_length", [](const FlatParameters& flat,
                              size_t bucket) { return flat.plan().range_length(bucket); })
      .def_property_readonly(
          "buckets", [](const FlatParameters& flat) { return flat.plan().buckets().size(); })
      .def("bucket", &FlatParameters::bucket)
      .def("rename", &FlatParameters::rename)
      .def("clear_gradients", &FlatParameters::clear_gradients)
      .def("mark_used", &FlatParameters::mark_used)
      .def("start_gather", &FlatParameters::start_gather, released)
      .def("wait_for_values", &FlatParameters::wait_for_values, released);

  py::class_<GradReducer, std::shared_ptr<GradReducer>>(m, "GradReducer")
      .def(py::init([](const std::shared_ptr<FlatParameters>& parameters, bool is_sharded) {
             return make_released<GradReducer>(
                 parameters, shard::ReducerOptions().mode(is_sharded ? GradientMode::kSharded
                                                                     : GradientMode::kReplicated));
           }),
           py::arg("parameters"), py::arg("is_sharded"))
      .def("prepare", &GradReducer::prepare, released)
      .def("reduce", &GradReducer::reduce, released)
      .def_property("sync", &GradReducer::sync, &GradReducer::set_sync);

  m.def("clip_gradients", &shard::clip_gradients, released, py::arg("parameters"),
        py::arg("max_norm"), py::arg("norm_type"));
  m.def(
      "check_same_parameters",
      [](const comm::Group& group, const std::vector<std::string>& names,
         const std::vector<at::Tensor>& tensors) {
        shard::check_same_parameters(group, to_parameters(names, tensors, {}));
      },
      released, "Raises ValueError with the first difference between the ranks' models.");
}

}  // namespace fairshard::python

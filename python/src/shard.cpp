// shard/ for Python.
#include "bindings.h"
#include <fairshard/shard/agree.h>
#include <fairshard/shard/clip.h>
#include <fairshard/shard/flat_parameters.h>
#include <fairshard/shard/grad_reducer.h>

#include <pybind11/functional.h>

#include <unordered_set>

namespace fairshard::python {

using shard::FlatParameters;
using shard::GradientMode;
using shard::GradReducer;
using shard::Join;
using shard::Parameter;
using shard::Partition;
using shard::ReleasedValues;
using shard::Slice;

namespace {

using Parts = std::vector<std::shared_ptr<FlatParameters>>;

std::vector<Parameter> to_parameters(const std::vector<std::string>& names,
                                     const std::vector<at::Tensor>& tensors,
                                     const std::vector<int64_t>& groups) {
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < tensors.size(); ++i) {
    parameters.push_back({names.at(i), tensors[i], groups.empty() ? 0 : groups.at(i)});
  }
  return parameters;
}

std::vector<std::tuple<std::string, at::Tensor, int64_t>> parameters_of(
    const FlatParameters& flat) {
  std::vector<std::tuple<std::string, at::Tensor, int64_t>> result;
  for (const auto& p : flat.parameters()) {
    result.emplace_back(p.name, p.tensor, p.group);
  }
  return result;
}

std::vector<std::optional<at::Tensor>> gradients_of(const FlatParameters& flat,
                                                    std::optional<size_t> bucket) {
  std::vector<std::optional<at::Tensor>> result;
  for (const auto& slice : flat.slices()) {
    if (bucket && slice.piece.bucket != *bucket) {
      continue;
    }
    const at::Tensor gradient = flat.gradients().of(slice);
    result.push_back(gradient.defined() ? std::optional(gradient) : std::nullopt);
  }
  return result;
}

at::Tensor clip_selected(const Parts& parts, double max_norm, double norm_type,
                         const std::optional<std::vector<at::Tensor>>& selected) {
  if (!selected) {
    return shard::clip_gradients(parts, max_norm, norm_type);
  }
  std::unordered_set<const c10::TensorImpl*> chosen;
  for (const auto& tensor : *selected) {
    chosen.insert(tensor.unsafeGetTensorImpl());
  }
  return shard::clip_gradients(parts, max_norm, norm_type, [&](const at::Tensor& tensor) {
    return chosen.count(tensor.unsafeGetTensorImpl()) > 0;
  });
}

void bind_join(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<Join, std::shared_ptr<Join>> join(m, "Join");
  py::enum_<Join::Action>(join, "Action")
      .value("NOTHING", Join::Action::kNothing)
      .value("FORWARD", Join::Action::kForward)
      .value("REDUCE", Join::Action::kReduce)
      .value("CLIP", Join::Action::kClip)
      .value("STEP", Join::Action::kStep);
  py::class_<Join::Announcement>(join, "Announcement")
      .def_readonly("action", &Join::Announcement::action)
      .def_readonly("details", &Join::Announcement::details)
      .def_readonly("leader", &Join::Announcement::leader);
  join.def(py::init([](const comm::Group& group) { return make_released<Join>(group); }))
      .def("announce", &Join::announce, released, py::arg("action"),
           py::arg("details") = Join::Details{})
      .def("follow", &Join::follow, released)
      .def_property_readonly("is_following", &Join::is_following)
      .def_property_readonly("last", &Join::last);
}

}  // namespace

void init_shard(py::module_& module) {
  py::module_ m = module.def_submodule("shard");
  const auto released = py::call_guard<py::gil_scoped_release>();
  bind_join(m);

  py::class_<ReleasedValues, std::shared_ptr<ReleasedValues>>(m, "ReleasedValues")
      .def("set_blocks", &ReleasedValues::set_blocks, released, py::arg("blocks"))
      .def("begin_forward", &ReleasedValues::begin_forward, released, py::arg("is_training"),
           py::arg("by_block"))
      .def("start_block", &ReleasedValues::start_block, released)
      .def("wait_for_block", &ReleasedValues::wait_for_block, released)
      .def("after_block", &ReleasedValues::after_block, released)
      .def("end_forward", &ReleasedValues::end_forward, released, py::arg("releases") = true);

  py::class_<Slice>(m, "Slice", "A part of a parameter that one rank owns.")
      .def_property_readonly("parameter", [](const Slice& s) { return s.piece.parameter; })
      .def_property_readonly("bucket", [](const Slice& s) { return s.piece.bucket; })
      .def_property_readonly("begin", [](const Slice& s) { return s.piece.begin; })
      .def_property_readonly("end", [](const Slice& s) { return s.piece.end; })
      .def_property_readonly("offset", [](const Slice& s) { return s.piece.offset; })
      .def_readonly("values", &Slice::values);

  py::class_<FlatParameters, std::shared_ptr<FlatParameters>>(m, "FlatParameters",
                                                              py::dynamic_attr())
      .def(py::init([](const comm::Group& group, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& groups,
                       std::optional<int64_t> bucket_bytes, bool whole_tensors, bool master_weights,
                       std::optional<at::ScalarType> gather_dtype, bool release_values,
                       bool gather_in_forward) {
             const auto plan = shard::PlanOptions()
                                   .partition(whole_tensors ? Partition::kTensor : Partition::kEven)
                                   .bucket_bytes(bucket_bytes);
             return make_released<FlatParameters>(group, to_parameters(names, tensors, groups),
                                                  shard::FlatOptions()
                                                      .plan(plan)
                                                      .master_weights(master_weights)
                                                      .gather_dtype(gather_dtype)
                                                      .release_values(release_values)
                                                      .gather_in_forward(gather_in_forward));
           }),
           released, py::arg("group"), py::arg("names"), py::arg("tensors"), py::arg("groups"),
           py::arg("bucket_bytes"), py::arg("whole_tensors") = false,
           py::arg("master_weights") = false, py::arg("gather_dtype") = std::nullopt,
           py::arg("release_values") = false, py::arg("gather_in_forward") = false)
      .def_property_readonly("parameters", &parameters_of)
      .def_property_readonly("slices", &FlatParameters::slices, "What this rank owns.")
      .def("slices_of", &FlatParameters::slices_of, py::arg("rank"))
      .def("gradients", &gradients_of, py::arg("bucket") = std::nullopt,
           "The gradient of each of this rank's slices (of one bucket), or None.")
      .def(
          "gradient_memory", [](const FlatParameters& flat) { return flat.gradients().memory(); },
          "All memory that gradients of this rank lie in.")
      .def_property(
          "scaled_by", [](const FlatParameters& flat) { return flat.gradients().scaled_by; },
          [](FlatParameters& flat, int64_t scaler) { flat.gradients().scaled_by = scaler; })
      .def_property_readonly(
          "buckets", [](const FlatParameters& flat) { return flat.plan().buckets().size(); })
      .def("bucket", &FlatParameters::bucket)
      .def("bounds",
           [](const FlatParameters& flat, size_t b) { return flat.plan().buckets().at(b).bounds; })
      .def_property_readonly("revision", &FlatParameters::revision)
      .def("rename", &FlatParameters::rename)
      .def("settle", &FlatParameters::settle)
      .def("before_step", &FlatParameters::before_step, released)
      .def("follow_parameters", &FlatParameters::follow_parameters, released)
      .def("publish_copies", &FlatParameters::publish_copies, released)
      .def("has_copy", &FlatParameters::has_copy)
      .def("bucket_of",
           [](const FlatParameters& flat, size_t i) { return flat.plan().bucket_of(i); })
      .def("clear_gradients", [](FlatParameters& flat) { flat.gradients().clear(); })
      .def("mark_used", [](FlatParameters& flat) { flat.gradients().mark_used(); })
      .def("start_gather", &FlatParameters::start_gather, released)
      .def("wait_for_values", &FlatParameters::wait_for_values, released)
      .def(
          "wait_for",
          [](FlatParameters& flat, const std::vector<size_t>& numbers) {
            for (const size_t number : numbers) {
              flat.wait_for_value(number);
            }
          },
          released, "Returns when these parameters are in place.")
      .def("broadcast", &FlatParameters::broadcast, released)
      .def_property_readonly("released", &FlatParameters::released,
                             "What releases values between forward and backward, or None.")
      .def_readwrite("on_reduced", &FlatParameters::on_reduced)
      .def("take_was_stepped", &FlatParameters::take_was_stepped)
      .def("step_all_buckets", &FlatParameters::step_all_buckets, released)
      .def_readwrite("join", &FlatParameters::join);

  py::class_<GradReducer, std::shared_ptr<GradReducer>>(m, "GradReducer")
      .def(py::init(
               [](const Parts& parts, bool is_sharded, std::optional<at::ScalarType> wire_dtype) {
                 const auto mode = is_sharded ? GradientMode::kSharded : GradientMode::kReplicated;
                 return make_released<GradReducer>(
                     parts, shard::ReducerOptions().mode(mode).wire_dtype(wire_dtype));
               }),
           py::arg("parts"), py::arg("is_sharded"), py::arg("wire_dtype"))
      .def("prepare", &GradReducer::prepare, released)
      .def("reduce", &GradReducer::reduce, released)
      .def_property("sync", py::cpp_function(&GradReducer::sync, released),
                    py::cpp_function(&GradReducer::set_sync, released));

  m.def("clip_gradients", &clip_selected, released, py::arg("parts"), py::arg("max_norm"),
        py::arg("norm_type"), py::arg("selected"));
  m.def(
      "check_same_parameters",
      [](const comm::Group& group, const std::vector<std::string>& names,
         const std::vector<at::Tensor>& tensors) {
        shard::check_same_parameters(group, to_parameters(names, tensors, {}));
      },
      released, "Raises ValueError with the first difference between the ranks' models.");
}

}  // namespace fairshard::python

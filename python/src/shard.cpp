// shard/ for Python.
#include "bindings.h"
#include <fairshard/shard/agree.h>
#include <fairshard/shard/data_parallel_engine.h>
#include <fairshard/shard/optimizer_names.h>
#include <fairshard/shard/sharded_step.h>

#include <pybind11/functional.h>
#include <torch/csrc/distributed/c10d/python_comm_hook.h>

#include <unordered_set>

namespace fairshard::python {

using shard::DataParallelEngine;
using shard::FlatGroup;
using shard::Parameter;
using shard::Partition;
using shard::ShardedStep;
using shard::Slice;

namespace {

/// What a lazy module has for a parameter before its first forward is an empty tensor in C++.
void check_not_lazy(const std::string& name, const at::Tensor& tensor) {
  if (tensor.numel() > 0) {
    return;
  }
  const py::gil_scoped_acquire gil;
  TORCH_CHECK_VALUE(!py::module_::import("torch.nn.parameter").attr("is_lazy")(tensor).cast<bool>(),
                    "parameter '", name,
                    "' has no values yet, as its module is lazy: run the model once before");
}

std::vector<Parameter> to_parameters(const std::vector<std::string>& names,
                                     const std::vector<at::Tensor>& tensors,
                                     const std::vector<int64_t>& groups = {}) {
  std::vector<Parameter> parameters;
  for (size_t i = 0; i < tensors.size(); ++i) {
    check_not_lazy(names.at(i), tensors[i]);
    parameters.push_back({names.at(i), tensors[i], groups.empty() ? 0 : groups.at(i)});
  }
  return parameters;
}

std::vector<at::Tensor> tensors_of(const FlatGroup& group) {
  std::vector<at::Tensor> result;
  for (const Parameter& parameter : group.parameters()) {
    result.push_back(parameter.tensor);
  }
  return result;
}

/// A slice that this rank owns, with where it comes from.
struct OwnedSlice {
  size_t flat_group;
  size_t group;
  at::Tensor parameter;
  Slice slice;
  bool has_master;
};

std::vector<OwnedSlice> owned_slices(const ShardedStep& step) {
  std::vector<OwnedSlice> result;
  for (size_t g = 0; g < step.flat_groups().size(); ++g) {
    const FlatGroup& group = *step.flat_groups()[g];
    for (const Slice& slice : group.slices()) {
      const Parameter& parameter = group.parameters()[slice.piece.parameter];
      result.push_back({g, step.first_group(g) + static_cast<size_t>(parameter.group),
                        parameter.tensor, slice, group.bucket(slice.piece.bucket).has_master()});
    }
  }
  return result;
}

at::Tensor clip(ShardedStep& step, double max_norm, double norm_type,
                const std::optional<std::vector<at::Tensor>>& selected) {
  if (!selected) {
    return step.clip(max_norm, norm_type);
  }
  std::unordered_set<const c10::TensorImpl*> chosen;
  for (const auto& tensor : *selected) {
    chosen.insert(tensor.unsafeGetTensorImpl());
  }
  return step.clip(max_norm, norm_type, [&](const at::Tensor& tensor) {
    return chosen.count(tensor.unsafeGetTensorImpl()) > 0;
  });
}

void bind_slices(py::module_& m) {
  py::class_<Slice>(m, "Slice", "A range of a parameter that one rank owns.")
      .def_property_readonly("parameter", [](const Slice& s) { return s.piece.parameter; })
      .def_property_readonly("bucket", [](const Slice& s) { return s.piece.bucket; })
      .def_property_readonly("begin", [](const Slice& s) { return s.piece.begin; })
      .def_property_readonly("end", [](const Slice& s) { return s.piece.end; })
      .def_property_readonly("offset", [](const Slice& s) { return s.piece.offset; })
      .def_readonly("values", &Slice::values);
  py::class_<OwnedSlice>(m, "OwnedSlice", "A slice of this rank's, with where it comes from.")
      .def_readonly("flat_group", &OwnedSlice::flat_group)
      .def_readonly("group", &OwnedSlice::group)
      .def_readonly("parameter", &OwnedSlice::parameter)
      .def_readonly("slice", &OwnedSlice::slice)
      .def_property_readonly("values", [](const OwnedSlice& s) { return s.slice.values; })
      .def_readonly("has_master", &OwnedSlice::has_master);
}

void bind_flat_group(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<FlatGroup, std::shared_ptr<FlatGroup>>(m, "FlatGroup")
      .def_property_readonly("parameters", &tensors_of)
      .def("slices_of", &FlatGroup::slices_of, py::arg("rank"))
      .def_property_readonly("buckets",
                             [](const FlatGroup& group) { return group.layout().buckets().size(); })
      .def("bounds",
           [](const FlatGroup& group, size_t b) { return group.layout().buckets().at(b).bounds; })
      .def("device",
           [](const FlatGroup& group, size_t b) { return group.bucket(b).flat().device(); })
      .def("has_master",
           [](const FlatGroup& group, size_t parameter) {
             return group.bucket(group.layout().bucket_of(parameter)).has_master();
           })
      .def("update_masters", &FlatGroup::update_masters, released)
      .def("publish_masters", &FlatGroup::publish_masters, released);
}

void bind_sharded_step(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<ShardedStep, std::shared_ptr<ShardedStep>>(m, "ShardedStep")
      .def(py::init([](const comm::Mesh& mesh,
                       const decltype(shard::StepCallbacks::step_slices)& step_slices,
                       const std::function<std::vector<double>()>& numbers,
                       const std::function<void(const std::vector<double>&)>& set_numbers,
                       std::optional<int64_t> bucket_bytes, bool whole_tensors, bool master_weights,
                       std::optional<at::ScalarType> gather_dtype, bool overlap_gather,
                       bool step_in_backward, bool release_parameters, bool step_in_parts) {
             const auto layout =
                 shard::LayoutOptions()
                     .partition(whole_tensors ? Partition::kTensor : Partition::kEven)
                     .bucket_bytes(bucket_bytes);
             const auto flat = shard::FlatOptions()
                                   .layout(layout)
                                   .precision({master_weights, gather_dtype})
                                   .step_in_backward(step_in_backward)
                                   .reshard_after_forward(release_parameters)
                                   .reshard_after_step(overlap_gather);
             return make_released<ShardedStep>(
                 mesh,
                 shard::StepOptions()
                     .flat(flat)
                     .overlap_gather(overlap_gather)
                     .step_in_parts(step_in_parts),
                 shard::StepCallbacks{step_slices, numbers, set_numbers});
           }),
           py::arg("mesh"), py::arg("step_slices"), py::arg("numbers"), py::arg("set_numbers"),
           py::kw_only(), py::arg("bucket_bytes"), py::arg("whole_tensors"),
           py::arg("master_weights"), py::arg("gather_dtype"), py::arg("overlap_gather"),
           py::arg("step_in_backward"), py::arg("release_parameters"), py::arg("step_in_parts"))
      .def_static("of", &ShardedStep::of, "The step to which a parameter belongs, or None.")
      .def(
          "add",
          [](ShardedStep& step, const std::vector<std::string>& names,
             const std::vector<at::Tensor>& tensors, const std::vector<int64_t>& groups,
             size_t parameter_groups) {
            step.add(to_parameters(names, tensors, groups), parameter_groups);
          },
          released)
      .def_property_readonly("flat_groups", &ShardedStep::flat_groups)
      .def("first_group", &ShardedStep::first_group)
      .def_property_readonly("slices", &ShardedStep::slices)
      .def_property_readonly("owned", &owned_slices)
      .def_property_readonly("layout_version", &ShardedStep::layout_version)
      .def("run", &ShardedStep::run, released)
      .def("clip", &clip, released, py::arg("max_norm"), py::arg("norm_type"), py::arg("selected"))
      .def("clip_values", &ShardedStep::clip_values, released)
      .def_property_readonly("awaits_reduction", &ShardedStep::awaits_reduction)
      .def("wait_for_parameters", &ShardedStep::wait_for_parameters, released)
      .def("clear_gradients", &ShardedStep::clear_gradients)
      .def("gradient_memory", &ShardedStep::gradient_memory)
      .def_property("scaled_by", &ShardedStep::scaled_by, &ShardedStep::set_scaled_by)
      .def("freeze_layout", &ShardedStep::freeze_layout);
}

void bind_engine(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<DataParallelEngine, std::shared_ptr<DataParallelEngine>>(m, "DataParallelEngine")
      .def(py::init([](const comm::Group& group, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors,
                       const std::vector<at::Tensor>& buffers, bool shard_gradients,
                       bool broadcast_buffers, bool sync_at_startup, bool reduce_in_backward,
                       int64_t bucket_bytes, std::optional<at::ScalarType> reduce_dtype,
                       bool static_graph) {
             return make_released<DataParallelEngine>(group, to_parameters(names, tensors), buffers,
                                                      shard::EngineOptions()
                                                          .shard_gradients(shard_gradients)
                                                          .broadcast_buffers(broadcast_buffers)
                                                          .sync_at_startup(sync_at_startup)
                                                          .reduce_in_backward(reduce_in_backward)
                                                          .bucket_bytes(bucket_bytes)
                                                          .reduce_dtype(reduce_dtype)
                                                          .static_graph(static_graph));
           }),
           released, py::arg("group"), py::arg("names"), py::arg("tensors"), py::arg("buffers"),
           py::kw_only(), py::arg("shard_gradients"), py::arg("broadcast_buffers"),
           py::arg("sync_at_startup"), py::arg("reduce_in_backward"), py::arg("bucket_bytes"),
           py::arg("reduce_dtype"), py::arg("static_graph"))
      .def(
          "set_parameters",
          [](DataParallelEngine& engine, const std::vector<std::string>& names,
             const std::vector<at::Tensor>& tensors) {
            engine.set_parameters(to_parameters(names, tensors));
          },
          released)
      .def("before_forward", &DataParallelEngine::before_forward, released)
      .def("after_forward", &DataParallelEngine::after_forward, released, py::arg("buffers"),
           py::arg("do_reshard") = true)
      .def_property_readonly("uses_blocks", &DataParallelEngine::uses_blocks)
      .def_property_readonly("reshards",
                             [](DataParallelEngine& e) { return e.blocks().reshards(); })
      .def_property_readonly("wants_blocks", &DataParallelEngine::wants_blocks)
      .def_property_readonly("knows_blocks",
                             [](DataParallelEngine& e) { return e.blocks().are_known(); })
      .def(
          "agree_on_call_order",
          [](const DataParallelEngine& e, size_t count, const std::vector<size_t>& called) {
            return shard::agree_on_call_order(e.group(), count, called);
          },
          released)
      .def(
          "set_blocks",
          [](DataParallelEngine& e, const std::vector<std::vector<at::Tensor>>& blocks,
             const std::vector<size_t>& order) { e.blocks().set(blocks, order); },
          released)
      .def(
          "before_block", [](DataParallelEngine& e, size_t block) { e.blocks().before(block); },
          released)
      .def(
          "after_block",
          [](DataParallelEngine& e, size_t block, const std::vector<at::Tensor>& outputs) {
            e.blocks().after(block, outputs);
          },
          released)
      .def("wait_for_parameters", &DataParallelEngine::wait_for_parameters, released)
      .def_property("sync", py::cpp_function(&DataParallelEngine::sync, released),
                    py::cpp_function(&DataParallelEngine::set_sync, released))
      .def("set_comm_hook",
           [](DataParallelEngine& engine, py::object state, py::object hook) {
             auto adapter =
                 std::make_shared<c10d::PythonCommHook>(std::move(state), std::move(hook));
             const py::gil_scoped_release no_gil;
             engine.set_comm_hook(std::move(adapter));
           })
      .def("reduce", &DataParallelEngine::reduce, released)
      .def("clear_gradients", &DataParallelEngine::clear_gradients, released)
      .def("broadcast_buffers", &DataParallelEngine::broadcast_buffers, released)
      .def("begin_join", &DataParallelEngine::begin_join, released)
      .def("follow_others", &DataParallelEngine::follow_others, released)
      .def("end_join", &DataParallelEngine::end_join, released, py::arg("buffers"),
           py::arg("has_failed"));
}

}  // namespace

void init_shard(py::module_& module) {
  py::module_ m = module.def_submodule("shard");
  m.def("is_element_wise", &shard::is_element_wise, "Whether slices of parameters may be stepped.");
  m.def("is_adam_like", &shard::is_adam_like, "Whether steps do not grow with the gradients.");
  bind_slices(m);
  bind_flat_group(m);
  bind_sharded_step(m);
  bind_engine(m);
}

}  // namespace fairshard::python

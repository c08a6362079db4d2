// outer/ for Python.
#include "bindings.h"
#include <fairshard/outer/slow_loop.h>

#include <pybind11/functional.h>

namespace fairshard::python {

using outer::BaseAlgorithm;
using outer::GossipGraph;
using outer::Nodes;
using outer::OuterOptimizerKind;
using outer::OuterOptions;
using outer::SlowLoop;
using outer::Synchroniser;
using outer::WireFormat;

namespace {

std::vector<shard::Parameter> to_named(const std::vector<std::string>& names,
                                       const std::vector<at::Tensor>& tensors) {
  std::vector<shard::Parameter> parameters;
  for (size_t i = 0; i < tensors.size(); ++i) {
    parameters.push_back({names.at(i), tensors[i]});
  }
  return parameters;
}

/// An option as a property; `Field` is its type.
template <typename Field>
void bind_option(py::class_<OuterOptions>& options, const char* name,
                 const Field& (OuterOptions::*get)() const,
                 OuterOptions& (OuterOptions::*set)(const Field&)) {
  options.def_property(
      name, [get](const OuterOptions& o) { return (o.*get)(); },
      [set](OuterOptions& o, Field value) { (o.*set)(value); });
}

void bind_options(py::module_& m) {
  py::enum_<BaseAlgorithm>(m, "BaseAlgorithm")
      .value("LOCALSGD", BaseAlgorithm::kLocalSgd)
      .value("SGP", BaseAlgorithm::kSgp);
  py::enum_<OuterOptimizerKind>(m, "OuterOptimizer")
      .value("AVERAGE", OuterOptimizerKind::kAverage)
      .value("SLOW_MOMENTUM", OuterOptimizerKind::kSlowMomentum)
      .value("NESTEROV", OuterOptimizerKind::kNesterov);
  py::enum_<WireFormat>(m, "WireFormat")
      .value("FLOAT32", WireFormat::kFloat32)
      .value("BFLOAT16", WireFormat::kBFloat16)
      .value("INT8", WireFormat::kInt8)
      .value("SPARSE", WireFormat::kSparse);
  py::enum_<GossipGraph>(m, "GossipGraph")
      .value("EXPONENTIAL", GossipGraph::kExponential)
      .value("RING", GossipGraph::kRing);
  py::class_<OuterOptions> options(m, "OuterOptions");
  options.def(py::init<>());
  const auto bind = [&]<typename Field>(const char* name, const Field& (OuterOptions::*get)() const,
                                        OuterOptions& (OuterOptions::*set)(const Field&)) {
    bind_option<Field>(options, name, get, set);
  };
  bind.operator()<BaseAlgorithm>("base", &OuterOptions::base, &OuterOptions::base);
  bind.operator()<OuterOptimizerKind>("optimizer", &OuterOptions::optimizer,
                                      &OuterOptions::optimizer);
  bind.operator()<double>("learning_rate", &OuterOptions::learning_rate,
                          &OuterOptions::learning_rate);
  bind.operator()<double>("momentum", &OuterOptions::momentum, &OuterOptions::momentum);
  bind.operator()<int64_t>("slow_frequency", &OuterOptions::slow_frequency,
                           &OuterOptions::slow_frequency);
  bind.operator()<int64_t>("average_frequency", &OuterOptions::average_frequency,
                           &OuterOptions::average_frequency);
  bind.operator()<int>("fragments", &OuterOptions::fragments, &OuterOptions::fragments);
  bind.operator()<int64_t>("delay", &OuterOptions::delay, &OuterOptions::delay);
  bind.operator()<double>("local_weight", &OuterOptions::local_weight, &OuterOptions::local_weight);
  bind.operator()<GossipGraph>("graph", &OuterOptions::graph, &OuterOptions::graph);
  bind.operator()<bool>("overlap_gossip", &OuterOptions::overlap_gossip,
                        &OuterOptions::overlap_gossip);
  bind.operator()<int64_t>("gossip_frequency", &OuterOptions::gossip_frequency,
                           &OuterOptions::gossip_frequency);
  bind.operator()<bool>("average_at_slow_step", &OuterOptions::average_at_slow_step,
                        &OuterOptions::average_at_slow_step);
  bind.operator()<WireFormat>("wire", &OuterOptions::wire, &OuterOptions::wire);
  bind.operator()<bool>("shard_buffers", &OuterOptions::shard_buffers,
                        &OuterOptions::shard_buffers);
  bind.operator()<bool>("host_memory", &OuterOptions::host_memory, &OuterOptions::host_memory);
  bind.operator()<int>("pieces", &OuterOptions::pieces, &OuterOptions::pieces);
}

py::dict report_of(const Synchroniser& synchroniser) {
  const auto report = synchroniser.report();
  py::dict result;
  result["calls"] = report.calls;
  result["averages"] = report.averages;
  result["slow_steps"] = report.slow_steps;
  result["intra_node_bytes"] = report.intra_node_bytes;
  result["inter_node_bytes"] = report.inter_node_bytes;
  result["intra_node_bytes_per_call"] = report.intra_node_bytes_per_call();
  result["inter_node_bytes_per_call"] = report.inter_node_bytes_per_call();
  return result;
}

void bind_loop(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<SlowLoop, std::shared_ptr<SlowLoop>>(m, "SlowLoop")
      .def(py::init([](const comm::Group& world, const comm::Group& inside,
                       const comm::Group& between, const std::vector<std::string>& names,
                       const std::vector<at::Tensor>& tensors,
                       const std::vector<at::Tensor>& buffers, const OuterOptions& options,
                       bool auto_momentum, bool broadcast_buffers,
                       std::optional<bool> zero_inner_momentum, bool zero_adam) {
             return make_released<SlowLoop>(world, Nodes(inside, between), to_named(names, tensors),
                                            buffers,
                                            outer::SlowMoOptions()
                                                .outer(options)
                                                .auto_momentum(auto_momentum)
                                                .broadcast_buffers(broadcast_buffers)
                                                .zero_inner_momentum(zero_inner_momentum)
                                                .zero_adam(zero_adam));
           }),
           released, py::arg("world"), py::arg("inside"), py::arg("between"), py::arg("names"),
           py::arg("tensors"), py::arg("buffers"), py::arg("options"), py::kw_only(),
           py::arg("auto_momentum"), py::arg("broadcast_buffers"), py::arg("zero_inner_momentum"),
           py::arg("zero_adam"))
      .def_property_readonly("advice", &SlowLoop::advice)
      .def_property_readonly("synchroniser", &SlowLoop::synchroniser)
      .def_property_readonly("is_sharded", &SlowLoop::is_sharded)
      .def("is_behind", &SlowLoop::is_behind, py::arg("parameters"))
      .def("average", &SlowLoop::average, released, py::arg("masters"))
      .def(
          "set_parameters",
          [](SlowLoop& self, const std::vector<std::string>& names,
             const std::vector<at::Tensor>& tensors) {
            self.set_parameters(to_named(names, tensors));
          },
          released)
      .def("count_forward", &SlowLoop::count_forward)
      .def(
          "step",
          [](SlowLoop& self, const decltype(outer::InnerOptimizer::groups)& groups,
             const decltype(outer::InnerOptimizer::zero)& zero,
             const std::vector<at::Tensor>& masters, const std::vector<at::Tensor>& buffers) {
            auto result = self.step({groups, zero}, masters, buffers);
            return std::pair(result.has_averaged, result.stepped.size());
          },
          released, py::arg("groups"), py::arg("zero"), py::arg("masters"), py::arg("buffers"),
          "To be called after every inner step. Whether nodes were averaged, and how many "
          "parameters the outer optimizer stepped.");
}

}  // namespace

void init_outer(py::module_& module) {
  py::module_ m = module.def_submodule("outer");
  const auto released = py::call_guard<py::gil_scoped_release>();
  bind_options(m);
  m.def("check_ranks_per_node", &comm::check_ranks_per_node, py::arg("ranks"),
        py::arg("ranks_per_node"));

  py::class_<Synchroniser, std::shared_ptr<Synchroniser>>(m, "Synchroniser")
      .def_property_readonly("options", [](const Synchroniser& self) { return self.options(); })
      .def_property_readonly("calls", &Synchroniser::calls)
      .def_property_readonly("push_sum_weight", &Synchroniser::push_sum_weight)
      .def("arriving_push_sum_weight", &Synchroniser::arriving_push_sum_weight, released)
      .def("report", &report_of)
      .def(
          "state",
          [](const Synchroniser& self) {
            auto state = self.state();
            return std::pair(std::move(state.tensors), std::move(state.scalars));
          },
          released)
      .def(
          "load_state",
          [](Synchroniser& self, std::map<std::string, at::Tensor> tensors,
             std::map<std::string, double> scalars) {
            self.load_state({std::move(tensors), std::move(scalars)});
          },
          released);
  bind_loop(m);
}

}  // namespace fairshard::python

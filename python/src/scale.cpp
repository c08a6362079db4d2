// scale/ for Python.
#include "bindings.h"
#include <fairshard/scale/gain_meter.h>
#include <fairshard/scale/scaled_backward.h>
#include <fairshard/scale/unscale.h>
#include <fairshard/shard/sharded_step.h>

namespace fairshard::python {

using scale::GainMeter;

namespace {

void bind_gain_meter(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<GainMeter, std::shared_ptr<GainMeter>>(m, "GainMeter")
      .def(py::init([](const std::optional<comm::Group>& group,
                       const std::vector<std::vector<at::Tensor>>& parameter_groups,
                       int64_t accumulation, bool is_scaled_loss, std::optional<double> scale,
                       std::optional<double> smoothing, bool debias) {
             return make_released<GainMeter>(group, parameter_groups,
                                             scale::GainMeterOptions()
                                                 .accumulation(accumulation)
                                                 .is_scaled_loss(is_scaled_loss)
                                                 .scale(scale)
                                                 .smoothing(smoothing)
                                                 .debias(debias));
           }),
           py::arg("group"), py::arg("parameter_groups"), py::kw_only(), py::arg("accumulation"),
           py::arg("is_scaled_loss"), py::arg("scale"), py::arg("smoothing"), py::arg("debias"))
      .def(
          "measure_from",
          [](GainMeter& meter, const std::shared_ptr<shard::ShardedStep>& sharded) {
            meter.measure_from([weak = std::weak_ptr(sharded)] {
              const auto step = weak.lock();
              TORCH_CHECK(step, "AdaScale: the OSS that it measures is gone");
              return step->gradients_to_compare();
            });
          },
          "Measures what this rank owns of sharded parameters, instead of .grad.")
      .def("add_group", &GainMeter::add_group)
      .def("require_measurement", &GainMeter::require_measurement)
      .def("count_step", &GainMeter::count_step, released)
      .def("forget", &GainMeter::forget)
      .def("gains", &GainMeter::gains, released)
      .def("gain", &GainMeter::gain, released)
      .def("effective_steps", &GainMeter::effective_steps)
      .def_property_readonly("scale", &GainMeter::scale)
      .def_property_readonly("smoothing", &GainMeter::smoothing)
      .def("set_scale", &GainMeter::set_scale)
      .def_property("accumulation", &GainMeter::accumulation, &GainMeter::set_accumulation)
      .def("state", &GainMeter::state)
      .def("load", &GainMeter::load)
      .def("unhook", &GainMeter::unhook);
}

}  // namespace

void init_scale(py::module_& module) {
  py::module_ m = module.def_submodule("scale");
  const auto released = py::call_guard<py::gil_scoped_release>();
  bind_gain_meter(m);
  m.def("unscale", &scale::unscale, released, py::arg("group"), py::arg("gradients"),
        py::arg("inverse_scale"), py::arg("device"),
        "Unscales gradients in place; tells whether any rank has one that is not finite.");
  m.def("gradient_memory", &scale::gradient_memory, "Gradients, or the values of sparse ones.");
  m.def("mark_scaled_backward", &scale::mark_scaled_backward, py::arg("scaler"), py::arg("scale"),
        "To be called in a hook: this backward is that of a loss which the scaler has scaled.");
}

}  // namespace fairshard::python

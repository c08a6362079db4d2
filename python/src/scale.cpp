// scale/ for Python.
#include "bindings.h"
#include <fairshard/scale/scaled_backward.h>
#include <fairshard/scale/unscale.h>

namespace fairshard::python {

void init_scale(py::module_& module) {
  py::module_ m = module.def_submodule("scale");
  const auto released = py::call_guard<py::gil_scoped_release>();
  m.def("unscale", &scale::unscale, released, py::arg("group"), py::arg("gradients"),
        py::arg("inverse_scale"), py::arg("device"),
        "Unscales gradients in place; tells whether any rank has one that is not finite.");
  m.def("mark_scaled_backward", &scale::mark_scaled_backward, py::arg("scaler"),
        "To be called in a hook: this backward is that of a loss which the scaler has scaled.");
}

}  // namespace fairshard::python

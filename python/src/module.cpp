// The extension module fairshard._core.
#include "bindings.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "fairshard's C++ core";
  module.attr("torch_version") = FAIRSHARD_BUILT_WITH_TORCH;
  fairshard::python::init_comm(module);
  fairshard::python::init_outer(module);
  fairshard::python::init_page(module);
  fairshard::python::init_shard(module);
  fairshard::python::init_scale(module);
  fairshard::python::init_store(module);
  fairshard::python::init_parts(module);
}

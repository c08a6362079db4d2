#pragma once
// What the binding files share: a table of init functions, and how process groups are let go.

#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <utility>

namespace fairshard::python {

namespace py = pybind11;

void init_parts(py::module_& module);
void init_comm(py::module_& module);
void init_outer(py::module_& module);
void init_page(py::module_& module);
void init_scale(py::module_& module);
void init_shard(py::module_& module);
void init_store(py::module_& module);

/// Makes an object that is destroyed without the GIL. Whatever holds a process group needs this: a
/// Gloo destructor waits for threads which may wait for the GIL.
template <typename T, typename... Arguments>
std::shared_ptr<T> make_released(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...), [](T* object) {
    std::optional<py::gil_scoped_release> released;
    if (PyGILState_Check()) {  // not so if another such object, or a thread of autograd, lets go
      released.emplace();
    }
    delete object;
  });
}

}  // namespace fairshard::python

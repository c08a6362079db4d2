// comm/ for Python: groups made from torch.distributed's, and the collectives.
#include "bindings.h"
#include <fairshard/comm/backend.h>
#include <fairshard/comm/broadcast_all.h>
#include <fairshard/comm/collectives.h>
#include <fairshard/comm/init.h>
#include <fairshard/comm/mesh.h>
#include <fairshard/comm/waits.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace fairshard::python {

using comm::Group;
using comm::Mesh;
using comm::ReduceOp;
using comm::Work;

namespace {

/// The collective with its handle made for Python: a Work keeps its group alive.
template <typename... Arguments>
auto started(Work (*collective)(Arguments...)) {
  return [collective](Arguments... arguments) {
    return make_released<Work>(collective(std::forward<Arguments>(arguments)...));
  };
}

}  // namespace

void init_comm(py::module_& module) {
  py::module_ m = module.def_submodule("comm");
  const auto released = py::call_guard<py::gil_scoped_release>();

  py::enum_<ReduceOp>(m, "ReduceOp", "How values of ranks become one.")
      .value("SUM", ReduceOp::kSum)
      .value("AVG", ReduceOp::kAvg)
      .value("MIN", ReduceOp::kMin)
      .value("MAX", ReduceOp::kMax);

  py::class_<Work, std::shared_ptr<Work>>(m, "Work", "A collective that has been started.")
      .def("wait", &Work::wait, released, "Blocks until the results are in place.")
      .def("is_done", &Work::is_done, "Whether wait() would return or raise at once.");

  py::class_<Group, std::shared_ptr<Group>>(m, "Group")
      .def(py::init([](const c10::intrusive_ptr<c10d::ProcessGroup>& process_group) {
             return make_released<Group>(process_group);
           }),
           py::arg("process_group"))
      .def_property_readonly("rank", &Group::rank, "This process's rank.")
      .def_property_readonly("size", &Group::size, "How many ranks there are.")
      .def_property_readonly(
          "sent_bytes", [](const Group& g) { return g.traffic().sent_bytes; },
          "Payload that this rank has sent, in bytes.")
      .def_property_readonly(
          "collectives", [](const Group& g) { return g.traffic().collectives; },
          "How many collectives this rank has started.")
      .def_property_readonly("waited_s", &comm::waited_s,
                             "Seconds that this rank has waited for collectives; over NCCL a "
                             "stream waits, which is not counted.")
      .def_property_readonly("control_device", &Group::control_device,
                             "Where small tensors that the host reads are best.")
      .def_property_readonly(
          "timeout_s",
          [](const Group& g) { return std::chrono::duration<double>(g.timeout()).count(); },
          "How long any wait may take, in seconds.")
      .def("duplicate", &Group::duplicate, released,
           "A group of the same ranks, whose collectives do not wait for those of this one. "
           "Collective.");

  m.def("all_reduce", started(comm::all_reduce), released, py::arg("group"), py::arg("tensor"),
        py::arg("op") = ReduceOp::kSum, py::arg("label") = "",
        "Makes every rank's tensor the reduction of all.");
  m.def("broadcast", started(comm::broadcast), released, py::arg("group"), py::arg("tensor"),
        py::arg("root"), py::arg("label") = "", "Makes every rank's tensor that of root.");
  m.def("broadcast_all", &comm::broadcast_all, released, py::arg("group"), py::arg("tensors"),
        py::arg("root"), py::arg("label") = "",
        "Makes every rank's tensors, of any strides, those of root, in place. Blocks.");
  m.def("all_gather", started(comm::all_gather), released, py::arg("group"), py::arg("output"),
        py::arg("input"), py::arg("label") = "", py::arg("bounds") = comm::Bounds(),
        "Puts all inputs into output, in rank order.");
  m.def("reduce_scatter", started(comm::reduce_scatter), released, py::arg("group"),
        py::arg("output"), py::arg("input"), py::arg("op") = ReduceOp::kSum, py::arg("label") = "",
        py::arg("bounds") = comm::Bounds(),
        "Makes output this rank's part of the reduction of all inputs.");
  py::class_<Mesh, std::shared_ptr<Mesh>>(m, "Mesh")
      .def(py::init([](const Group& all) { return make_released<Mesh>(all); }), py::arg("all"))
      .def(py::init([](const Group& all, const Group& shards, const Group& replicas) {
             return make_released<Mesh>(all, shards, replicas);
           }),
           py::arg("all"), py::arg("shards"), py::arg("replicas"));
  m.def(
      "node_groups",
      [](const Group& all, int ranks_per_node) {
        const Mesh mesh(all, ranks_per_node);
        return std::pair(mesh.shards().process_group(), mesh.replicas().process_group());
      },
      released, py::arg("all"), py::arg("ranks_per_node"),
      "The groups of the ranks of this rank's node, and of those that have its place on every "
      "node. They last while they are used. Collective.");
  m.def("make_backend", &comm::make_backend, released, py::arg("store"), py::arg("rank"),
        py::arg("size"), py::arg("timeout_s"),
        "The c10d backend 'fairshard' of a rank. Blocks until all ranks have come.");
  py::class_<comm::Environment>(m, "Environment", "Who this rank is, by its launcher's variables.")
      .def(py::init([] { return comm::read_environment(); }))
      .def_readonly("rank", &comm::Environment::rank)
      .def_readonly("world_size", &comm::Environment::world_size)
      .def_readonly("local_rank", &comm::Environment::local_rank)
      .def_readonly("local_world_size", &comm::Environment::local_world_size);
  m.def("meet", &comm::meet, released, py::arg("environment"), py::arg("timeout_s"),
        "Meets the other ranks; the store that they share. Blocks until all ranks have come.");
  m.def("explain_waits", &comm::explain_waits, released, py::arg("group"),
        "What each rank of the group waits for, as a table, and who holds up the others. Blocks "
        "for seconds.");
  m.def("explain_waits_after", &comm::explain_waits_after, py::arg("group"), py::arg("seconds"),
        "Has waits that are longer than this explained in the log.");
  m.def("explain_waits_on_signal", &comm::explain_waits_on_signal, py::arg("signal"),
        "Has waits of all groups explained in the log when this signal comes.");
  m.def("note_step", &comm::note_step, py::arg("group"), py::arg("step"),
        "Tells which step this rank has finished, for explanations of waits.");
  m.def("barrier", &comm::barrier, released, py::arg("group"), py::arg("label") = "",
        "Returns when every rank has come here.");
}

}  // namespace fairshard::python

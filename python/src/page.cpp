// page/ for Python.
#include "bindings.h"
#include <fairshard/page/micro_batches.h>
#include <fairshard/page/pager.h>
#include <fairshard/page/slicing.h>
#include <fairshard/page/step_plan.h>

#include <pybind11/functional.h>

namespace fairshard::python {

using page::OptimizerWorker;
using page::Pager;
using page::StepOptions;
using page::StepRule;

namespace {

using Tensors = std::vector<at::Tensor>;

StepRule to_rule(const std::string& name) {
  TORCH_CHECK_VALUE(name == "adamw" || name == "adam" || name == "sgd", "no rule '", name, "'");
  return name == "adamw" ? StepRule::kAdamW : name == "adam" ? StepRule::kAdam : StepRule::kSgd;
}

using GetField =
    std::function<std::optional<at::Tensor>(const at::Tensor& parameter, const std::string& field)>;
using SetField = decltype(page::StateAccess::set);

StepOptions to_step_options(const std::string& rule, const py::dict& options) {
  const auto number = [&](const char* name) {  // learning rates may be tensors
    return options.contains(name) ? py::float_(options[name]).cast<double>() : 0.0;
  };
  const auto flag = [&](const char* name) {
    return options.contains(name) && options[name].cast<bool>();
  };
  auto result = StepOptions()
                    .rule(to_rule(rule))
                    .lr(number("lr"))
                    .eps(number("eps"))
                    .weight_decay(number("weight_decay"))
                    .momentum(number("momentum"))
                    .dampening(number("dampening"))
                    .nesterov(flag("nesterov"))
                    .amsgrad(flag("amsgrad"))
                    .maximize(flag("maximize"));
  if (options.contains("betas")) {
    const py::sequence betas = options["betas"];
    result.beta1(py::float_(betas[0])).beta2(py::float_(betas[1]));
  }
  return result;
}

py::dict to_dict(const page::PagerReport& report) {
  py::dict result;
  result["slices"] = report.slices;
  result["slots"] = report.slots;
  result["slot_bytes"] = report.slot_bytes;
  result["device_bytes"] = report.device_bytes;
  result["pinned_bytes"] = report.pinned_bytes;
  result["host_bytes"] = report.host_bytes;
  result["file_bytes"] = report.file_bytes;
  result["bytes_in"] = report.bytes_in;
  result["bytes_out"] = report.bytes_out;
  result["fills"] = report.fills;
  result["most_filled"] = report.most_filled;
  result["wait_s"] = report.wait_s;
  return result;
}

void bind_pager(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<Pager, std::shared_ptr<Pager>>(m, "Pager")
      .def(py::init([](const std::vector<Tensors>& slices, const Tensors& common, at::Device device,
                       std::optional<at::ScalarType> param_dtype, int64_t prefetch,
                       std::optional<int64_t> device_budget_bytes,
                       std::optional<int64_t> host_budget_bytes, const std::string& spill_dir,
                       bool record_spans, bool offload_activations) {
             return make_released<Pager>(slices, common,
                                         page::PagerOptions()
                                             .device(device)
                                             .param_dtype(param_dtype)
                                             .prefetch(prefetch)
                                             .device_budget_bytes(device_budget_bytes)
                                             .host_budget_bytes(host_budget_bytes)
                                             .spill_dir(spill_dir)
                                             .record_spans(record_spans)
                                             .offload_activations(offload_activations));
           }),
           released, py::arg("slices"), py::arg("common"), py::kw_only(), py::arg("device"),
           py::arg("param_dtype"), py::arg("prefetch"), py::arg("device_budget_bytes"),
           py::arg("host_budget_bytes"), py::arg("spill_dir"), py::arg("record_spans"),
           py::arg("offload_activations"))
      .def("begin", &Pager::begin, released)
      .def("cross", &Pager::cross, released, py::arg("to"), py::arg("values"))
      .def_property_readonly("current", &Pager::current)
      .def("abandon", &Pager::abandon, released)
      .def("set_after_backward", &Pager::set_after_backward)
      .def("report", [](Pager& pager) { return to_dict(pager.report()); })
      .def("take_spans", [](Pager& pager) {
        std::vector<std::tuple<std::string, std::string, double, double>> spans;
        for (const auto& [track, name, start, end] : pager.take_spans()) {
          spans.emplace_back(track, name, start, end);
        }
        return spans;
      });
}

void bind_worker(py::module_& m) {
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<OptimizerWorker, std::shared_ptr<OptimizerWorker>>(m, "OptimizerWorker")
      .def(py::init([](std::shared_ptr<Pager> pager, int64_t threads) {
             return make_released<OptimizerWorker>(std::move(pager), threads);
           }),
           released)
      .def(
          "plan",
          [](OptimizerWorker& worker, const std::string& rule, const py::dict& options,
             const Tensors& parameters, const GetField& get, const SetField& set) {
            const auto get_field = [&](const at::Tensor& parameter, const std::string& field) {
              return get(parameter, field).value_or(at::Tensor());
            };
            page::plan_steps(worker, parameters, to_step_options(rule, options), {get_field, set});
          },
          py::arg("rule"), py::arg("options"), py::arg("parameters"), py::arg("get"),
          py::arg("set"), "Options are those of a parameter group of the optimizer.")
      .def("without_plan", &OptimizerWorker::without_plan,
           "Parameters that require a gradient and have no plan.")
      .def("set_stepping", &OptimizerWorker::set_stepping)
      .def("wait", &OptimizerWorker::wait, released)
      .def("wait_for_plans", &OptimizerWorker::wait_for_plans, released)
      .def("busy_s", &OptimizerWorker::busy_s, released)
      .def("elements", &OptimizerWorker::elements, released);
}

}  // namespace

void init_page(py::module_& module) {
  py::module_ m = module.def_submodule("page");
  bind_pager(m);
  bind_worker(m);
  m.def("checked_device", &page::checked_device, "The device with its number, if it is there.");
  m.def("cut_batch", &page::cut_batch, py::arg("tensors"), py::arg("num_microbatches"));
  m.def("join_batches", &page::join_batches, py::arg("parts"));
  m.def(
      "slice_blocks",
      [](const std::vector<Tensors>& blocks, const Tensors& rest,
         std::optional<int64_t> num_slices) {
        const auto slicing = page::slice_blocks(blocks, rest, num_slices);
        return std::make_tuple(slicing.slice_of_block, slicing.slices, slicing.common);
      },
      py::arg("blocks"), py::arg("rest"), py::arg("num_slices"),
      "The slice of each block, the parameters of each slice, and those that slices have in "
      "common.");
}

}  // namespace fairshard::python

#pragma once
// What an OptimizerWorker has to know of an optimizer, whose states stay its own.

#include <fairshard/page/optimizer_worker.h>

#include <functional>
#include <string>
#include <vector>

namespace fairshard::page {

/// How the state that an optimizer has for a parameter is reached, by Python's names of its fields;
/// a field that it has not is undefined.
struct StateAccess {
  std::function<at::Tensor(const at::Tensor& parameter, const std::string& field)> get;
  std::function<void(const at::Tensor& parameter, const std::string& field, const at::Tensor&)> set;
};

/// Tells the worker how those of the parameters that require a gradient are stepped. Fields of
/// states are made, or moved to where the parameter's memory is, if need be.
void plan_steps(OptimizerWorker& worker, const std::vector<at::Tensor>& parameters,
                const StepOptions& options, const StateAccess& states);

}  // namespace fairshard::page

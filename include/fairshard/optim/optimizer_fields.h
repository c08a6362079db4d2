#pragma once
// What a checkpoint has to know of an optimizer class, which torch's interface does not tell.

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

namespace fairshard {

/// A part of the state of one parameter: a tensor, or a count of steps. A tensor has an element for
/// each of the parameter's, unless its name is "step".
struct StateField {
  /// As in a checkpoint, for instance "exp_avg".
  const char* name;
  /// Where the tensor is, if it is one.
  at::Tensor* tensor = nullptr;
  /// Where the count is, if it is one.
  int64_t* count = nullptr;
  /// Whether a state without it is of no use.
  bool is_required = true;
};

/// An option of a parameter group, where it stands.
struct OptionField {
  /// As in a checkpoint, for instance "lr".
  const char* name;
  /// Where it is.
  std::variant<double*, int64_t*, bool*, std::tuple<double, double>*> value;
};

/// For an optimizer class of your own: derive it from this as well as from torch::optim::Optimizer,
/// and a Checkpoint saves and loads it, alone or within an OSS, by any number of ranks.
///
///   class Lion : public torch::optim::Optimizer, public fairshard::OptimizerFields { ... };
class OptimizerFields {
 public:
  virtual ~OptimizerFields() = default;
  /// A state without values.
  virtual std::unique_ptr<torch::optim::OptimizerParamState> new_state() const = 0;
  /// What a state consists of; it is one of this optimizer's.
  virtual std::vector<StateField> state_fields(torch::optim::OptimizerParamState& state) const = 0;
  /// What the options of a group consist of; they are of this optimizer's class.
  virtual std::vector<OptionField> option_fields(torch::optim::OptimizerOptions& options) const = 0;
};

}  // namespace fairshard

#pragma once
// Optimizers whose step is one fused call per parameter group. Their options and results are those
// of torch's (a loop over tensors, several passes each); schedulers act on them.

#include <fairshard/optim/element_wise.h>

#include <torch/arg.h>
#include <torch/optim/serialize.h>

#include <memory>
#include <utility>
#include <vector>

namespace fairshard {

/// What the fused optimizers take beside the options of torch's.
struct FusedOptions {
  /// Parameters in float16 and bfloat16 are stepped in float32, on copies; what is written to a
  /// parameter in between is followed. (An OSS has an option of its own for this.)
  TORCH_ARG(bool, master_weights) = false;
};

/// The state of one tensor, for Adam and AdamW, and (`average` alone) for SGD with momentum.
struct FusedState : torch::optim::OptimizerCloneableParamState<FusedState> {
  at::Tensor step;                    ///< of one element
  at::Tensor average;                 ///< of gradients; SGD: the momentum buffer
  at::Tensor square_average;          ///< of squares of gradients
  at::Tensor largest_square_average;  ///< with amsgrad
  /// See FusedOptions::master_weights.
  at::Tensor master;
  /// How often the parameter had been written to when it was last set from the master.
  int64_t seen_version = -1;

  /// For torch's own archives.
  /// @{
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  /// @}
};

namespace detail {

/// What the fused optimizers share.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  at::Tensor step(LossClosure closure = nullptr) override;
  /// Whether a parameter is stepped on a copy; see FusedOptions::master_weights.
  bool has_master(const at::Tensor& parameter) const;

 protected:
  /// What a step changes: tensors with their gradients and states.
  struct Targets {
    std::vector<at::Tensor> values;
    std::vector<at::Tensor> gradients;
    std::vector<FusedState*> states;
  };

  FusedOptimizer(const Groups& groups, std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                 const FusedOptions& options)
      : Optimizer(groups, std::move(defaults)), options_(options) {}

  virtual void step_targets(const torch::optim::OptimizerOptions& options,
                            const Targets& targets) = 0;

 private:
  void step_group(const torch::optim::OptimizerParamGroup& group);

  FusedOptions options_;
};

/// Throws c10::ValueError that names the option and its value, as torch's optimizers do.
/// @{
void check_options(const torch::optim::AdamOptions& options);
void check_options(const torch::optim::AdamWOptions& options);
void check_options(const torch::optim::SGDOptions& options);
/// @}

/// A fused optimizer over one class of options, for all that take tensors or groups.
template <typename Options_>
class FusedOptimizerOf : public FusedOptimizer {
 public:
  using Options = Options_;
  explicit FusedOptimizerOf(const Groups& groups, const Options& defaults = {},
                            const FusedOptions& options = {})
      : FusedOptimizer(groups, std::make_unique<Options>(defaults), options) {
    check_options(defaults);
  }
  explicit FusedOptimizerOf(const std::vector<at::Tensor>& parameters, const Options& defaults = {},
                            const FusedOptions& options = {})
      : FusedOptimizerOf(Groups{torch::optim::OptimizerParamGroup(parameters)}, defaults, options) {
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<FusedState, Options>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<FusedState, Options>(archive, *this);
  }
};

}  // namespace detail

/// torch::optim::AdamW, in fused calls.
class AdamW : public detail::FusedOptimizerOf<torch::optim::AdamWOptions> {
 public:
  using FusedOptimizerOf::FusedOptimizerOf;

 private:
  void step_targets(const torch::optim::OptimizerOptions& options, const Targets& targets) override;
};

/// torch::optim::Adam, in fused calls.
class Adam : public detail::FusedOptimizerOf<torch::optim::AdamOptions> {
 public:
  using FusedOptimizerOf::FusedOptimizerOf;

 private:
  void step_targets(const torch::optim::OptimizerOptions& options, const Targets& targets) override;
};

/// torch::optim::SGD, in fused calls.
class SGD : public detail::FusedOptimizerOf<torch::optim::SGDOptions> {
 public:
  using FusedOptimizerOf::FusedOptimizerOf;

 private:
  void step_targets(const torch::optim::OptimizerOptions& options, const Targets& targets) override;
};

template <>
struct IsElementWise<AdamW> : std::true_type {};
template <>
struct IsElementWise<Adam> : std::true_type {};
template <>
struct IsElementWise<SGD> : std::true_type {};

}  // namespace fairshard

#pragma once
// Optimizers whose step is one fused call per parameter group. Their options and results are those
// of torch's (a loop over tensors, several passes each); schedulers act on them.

#include <fairshard/optim/element_wise.h>

#include <torch/optim/serialize.h>

#include <memory>
#include <utility>
#include <vector>

namespace fairshard {

/// The state of one tensor, for Adam and AdamW, and (`average` alone) for SGD with momentum.
struct FusedState : torch::optim::OptimizerCloneableParamState<FusedState> {
  at::Tensor step;
  at::Tensor average;
  at::Tensor square_average;
  at::Tensor largest_square_average;

  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

namespace detail {

/// What the fused optimizers share.
class FusedOptimizer : public torch::optim::Optimizer {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using Optimizer::Optimizer;

  at::Tensor step(LossClosure closure = nullptr) override;

 protected:
  virtual void step_group(torch::optim::OptimizerParamGroup& group) = 0;
};

/// A fused optimizer over one class of options, for all that take tensors or groups.
template <typename Options_>
class FusedOptimizerOf : public FusedOptimizer {
 public:
  using Options = Options_;
  explicit FusedOptimizerOf(const Groups& groups, const Options& defaults = {})
      : FusedOptimizer(groups, std::make_unique<Options>(defaults)) {}
  explicit FusedOptimizerOf(const std::vector<at::Tensor>& parameters, const Options& defaults = {})
      : FusedOptimizerOf(Groups{torch::optim::OptimizerParamGroup(parameters)}, defaults) {}

  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<FusedState, Options>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<FusedState, Options>(archive, *this);
  }
};

}  // namespace detail

class AdamW : public detail::FusedOptimizerOf<torch::optim::AdamWOptions> {
 public:
  using FusedOptimizerOf::FusedOptimizerOf;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

class Adam : public detail::FusedOptimizerOf<torch::optim::AdamOptions> {
 public:
  using FusedOptimizerOf::FusedOptimizerOf;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

class SGD : public detail::FusedOptimizerOf<torch::optim::SGDOptions> {
 public:
  using FusedOptimizerOf::FusedOptimizerOf;

 private:
  void step_group(torch::optim::OptimizerParamGroup& group) override;
};

template <>
struct IsElementWise<AdamW> : std::true_type {};
template <>
struct IsElementWise<Adam> : std::true_type {};
template <>
struct IsElementWise<SGD> : std::true_type {};

}  // namespace fairshard

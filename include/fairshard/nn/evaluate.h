#pragma once
// What a model is worth on data that ranks have divided between them.

#include <fairshard/comm/mean.h>
#include <fairshard/module/any_module.h>

#include <ATen/core/grad_mode.h>

#include <memory>
#include <utility>
#include <vector>

namespace fairshard {

namespace detail {

/// While it lives, a module and all in it evaluate; then each is as it was.
class Evaluating {
 public:
  explicit Evaluating(torch::nn::Module& module);
  ~Evaluating();
  Evaluating(const Evaluating&) = delete;
  Evaluating& operator=(const Evaluating&) = delete;

 private:
  /// From the outermost on.
  std::vector<std::pair<torch::nn::Module*, bool>> was_training_;
};

}  // namespace detail

/// The mean of fn(batch) over the batches of all ranks, which may have different numbers of them. A
/// batch's result is a number, or a comm::Weighted with the batch's size, and then batches may be
/// of any size. Meanwhile the module evaluates (eval(), without gradients). Collective where it
/// ends; ranks wait for each other only there, unless the model's parameters stay sharded between
/// steps (release_parameters with overlap_gather): then each forward is collective.
///
///   const double loss = evaluate(group, model, batches, [&](const Batch& batch) {
///     return comm::Weighted(loss_of(batch).item<double>(), batch.size());
///   });
template <AnyModule Module, typename Batches, typename Function>
double evaluate(const comm::Group& group, const Module& module, Batches&& batches, Function fn) {
  double sum = 0;
  double weight = 0;
  {
    const detail::Evaluating evaluating(module_of(module));
    const at::NoGradGuard no_grad;
    for (auto&& batch : batches) {
      const comm::Weighted result = fn(batch);
      sum += result.weight == 0 ? 0 : result.value * result.weight;
      weight += result.weight;
    }
  }
  return comm::mean(group, {weight == 0 ? 0 : sum / weight, weight});
}

}  // namespace fairshard

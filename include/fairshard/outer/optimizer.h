#pragma once
// What becomes of the nodes' average: the interface of outer optimizers.

#include <fairshard/outer/options.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace fairshard::outer {

/// Elements of a flat buffer that share an inner learning rate.
struct Run {
  int64_t begin;
  int64_t end;
  double learning_rate;
};

/// Steps flat ranges. It keeps no buffers itself: whoever calls it does, as it says.
class OuterOptimizer {
 public:
  virtual ~OuterOptimizer() = default;

  /// Whether it looks at the outer parameters, that is where the last step led to.
  virtual bool uses_outer() const = 0;
  /// Whether it needs a momentum buffer, which starts as zeros.
  virtual bool uses_momentum() const = 0;
  /// Whether it needs the inner learning rates.
  virtual bool uses_learning_rates() const = 0;

  /// Moves `outer` on, given the nodes' average; all flat and of one length, which `runs` share
  /// out. `momentum` is undefined if it is not used.
  virtual void step(const at::Tensor& outer, const at::Tensor& momentum, const at::Tensor& average,
                    const std::vector<Run>& runs) const = 0;
};

/// The one that the options name.
std::unique_ptr<OuterOptimizer> make_outer_optimizer(const OuterOptions& options);

}  // namespace fairshard::outer

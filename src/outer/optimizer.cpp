#include <fairshard/outer/optimizer.h>

namespace fairshard::outer {
namespace {

class Average final : public OuterOptimizer {
 public:
  bool uses_outer() const override { return false; }
  bool uses_momentum() const override { return false; }
  bool uses_learning_rates() const override { return false; }

  void step(const at::Tensor& outer, const at::Tensor& /*momentum*/, const at::Tensor& average,
            const std::vector<Run>& /*runs*/) const override {
    outer.copy_(average);
  }
};

/// u = beta u + (x0 - x) / lr; x0 = x0 - alpha lr u.
class SlowMomentum final : public OuterOptimizer {
 public:
  SlowMomentum(double alpha, double beta) : alpha_(alpha), beta_(beta) {}

  bool uses_outer() const override { return true; }
  bool uses_momentum() const override { return true; }
  bool uses_learning_rates() const override { return true; }

  void step(const at::Tensor& outer, const at::Tensor& momentum, const at::Tensor& average,
            const std::vector<Run>& runs) const override {
    for (const auto& [begin, end, learning_rate] : runs) {
      const auto part = [begin = begin, end = end](const at::Tensor& flat) {
        return flat.narrow(0, begin, end - begin);
      };
      const at::Tensor moved = part(outer) - part(average);
      if (learning_rate == 0) {
        // The limit of small learning rates: momentum has no say, and is left as it is.
        part(outer).sub_(moved, alpha_);
        continue;
      }
      part(momentum).mul_(beta_).add_(moved, 1 / learning_rate);
      part(outer).sub_(part(momentum), alpha_ * learning_rate);
    }
  }

 private:
  double alpha_;
  double beta_;
};

/// v = mu v + (x0 - x); x0 = x0 - eta ((x0 - x) + mu v).
class Nesterov final : public OuterOptimizer {
 public:
  Nesterov(double eta, double mu) : eta_(eta), mu_(mu) {}

  bool uses_outer() const override { return true; }
  bool uses_momentum() const override { return true; }
  bool uses_learning_rates() const override { return false; }

  void step(const at::Tensor& outer, const at::Tensor& momentum, const at::Tensor& average,
            const std::vector<Run>& /*runs*/) const override {
    const at::Tensor moved = outer - average;
    momentum.mul_(mu_).add_(moved);
    outer.sub_(moved, eta_).sub_(momentum, eta_ * mu_);
  }

 private:
  double eta_;
  double mu_;
};

}  // namespace

std::unique_ptr<OuterOptimizer> make_outer_optimizer(const OuterOptions& options) {
  switch (options.optimizer()) {
    case OuterOptimizerKind::kSlowMomentum:
      return std::make_unique<SlowMomentum>(options.learning_rate(), options.momentum());
    case OuterOptimizerKind::kNesterov:
      return std::make_unique<Nesterov>(options.learning_rate(), options.momentum());
    case OuterOptimizerKind::kAverage:
      break;
  }
  return std::make_unique<Average>();
}

}  // namespace fairshard::outer

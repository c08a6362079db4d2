#include <fairshard/nn/evaluate.h>

namespace fairshard::detail {

Evaluating::Evaluating(torch::nn::Module& module) {
  was_training_.emplace_back(&module, module.is_training());
  for (const auto& each : module.modules(/*include_self=*/false)) {
    was_training_.emplace_back(each.get(), each->is_training());
  }
  module.eval();
}

Evaluating::~Evaluating() {
  for (const auto& [module, was_training] : was_training_) {  // train() goes inwards
    module->train(was_training);
  }
}

}  // namespace fairshard::detail

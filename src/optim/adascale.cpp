#include "gradients.h"
#include <fairshard/optim/adascale.h>

#include <ATen/ops/_foreach_div.h>
#include <c10/util/Exception.h>

namespace fairshard::detail {

ScaledRates::ScaledRates(std::vector<torch::optim::OptimizerParamGroup>& groups,
                         const at::Tensor& factors)
    : groups_(groups) {
  const at::Tensor values = factors.cpu();
  TORCH_CHECK(static_cast<size_t>(values.numel()) == groups.size(), "AdaScale measures ",
              values.numel(), " parameter group(s), but the optimizer has ", groups.size(),
              ": add groups by AdaScale's own add_param_group(), not through a "
              "torch::optim::Optimizer&");
  for (size_t i = 0; i < groups.size(); ++i) {
    rates_.push_back(groups[i].options().get_lr());
    groups[i].options().set_lr(rates_[i] * values.const_data_ptr<double>()[i]);
  }
}

ScaledRates::~ScaledRates() {
  for (size_t i = 0; i < rates_.size(); ++i) {
    groups_[i].options().set_lr(rates_[i]);
  }
}

void divide_gradients(torch::optim::Optimizer& optimizer, double divisor) {
  const at::NoGradGuard no_grad;
  const auto gradients = gradient_memory_of(optimizer);
  if (!gradients.empty()) {
    at::_foreach_div_(gradients, divisor);
  }
}

}  // namespace fairshard::detail

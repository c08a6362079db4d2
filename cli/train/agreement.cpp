#include "agreement.h"

#include <fairshard/comm/collectives.h>

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <csignal>

namespace fairshard::cli::training {

Agreement::Agreement(const comm::Group& group, const at::Tensor& loss, int signal)
    : ranks_(group.size()) {
  const auto flag = [&](int wanted) {
    return at::scalar_tensor(signal == wanted ? 1.0 : 0.0, loss.options().dtype(at::kDouble));
  };
  values_ = at::stack({loss.to(at::kDouble), flag(SIGTERM), flag(SIGINT)});
  work_ = comm::all_reduce(group, values_, comm::ReduceOp::kSum, "loss and wish to end");
}

Agreement::Result Agreement::wait() {
  work_.wait();
  const at::Tensor values = values_.cpu();
  const auto* const numbers = values.const_data_ptr<double>();
  const int signal = numbers[2] > 0 ? SIGINT : numbers[1] > 0 ? SIGTERM : 0;
  return {numbers[0] / ranks_, signal};
}

}  // namespace fairshard::cli::training

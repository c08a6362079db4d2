#include "agreement.h"

#include <fairshard/comm/collectives.h>

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

namespace fairshard::cli::training {

Agreement::Agreement(const comm::Group& group, const at::Tensor& loss, bool asks_for_end)
    : ranks_(group.size()) {
  const auto options = loss.options().dtype(at::kDouble);
  values_ = at::stack({loss.to(at::kDouble), at::scalar_tensor(asks_for_end ? 1.0 : 0.0, options)});
  work_ = comm::all_reduce(group, values_, comm::ReduceOp::kSum, "loss and wish to end");
}

Agreement::Result Agreement::wait() {
  work_.wait();
  const at::Tensor values = values_.cpu();
  const auto* const numbers = values.const_data_ptr<double>();
  return {numbers[0] / ranks_, numbers[1] > 0};
}

}  // namespace fairshard::cli::training

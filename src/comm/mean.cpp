#include <fairshard/comm/collectives.h>
#include <fairshard/comm/mean.h>

#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

namespace fairshard::comm {

double mean(const Group& group, const Weighted& own) {
  TORCH_CHECK_VALUE(own.weight >= 0, "mean: the weight of rank ", group.rank(), " is ", own.weight,
                    ", but must not be negative");
  const double sum = own.weight == 0 ? 0 : own.value * own.weight;
  const at::Tensor totals = at::tensor({sum, own.weight}, at::kDouble);
  all_reduce(group, totals, ReduceOp::kSum, "mean").wait();
  const double weight = totals[1].item<double>();
  TORCH_CHECK_VALUE(weight > 0, "mean: the weights of all ", group.size(), " ranks are 0");
  return totals[0].item<double>() / weight;
}

}  // namespace fairshard::comm

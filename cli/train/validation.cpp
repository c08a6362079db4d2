#include "validation.h"

#include <fairshard/comm/collectives.h>

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <vector>

namespace fairshard::cli::training {

/// Ranks take turns through the windows, so that the loss is the same text's for any number of
/// them. All do the same number of forwards, in which they may have to gather: one that has no
/// window left computes the first, which does not count.
double validation_loss(const comm::Group& group, const TrainingText& text, Stepper& stepper,
                       int64_t batch) {
  const int64_t windows = text.held_out_windows();
  const int64_t per_forward = std::max<int64_t>(batch / group.size(), 1);
  double sum = 0;
  double count = 0;
  for (int64_t first = 0; first < windows; first += per_forward * group.size()) {
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < per_forward; ++i) {
      const int64_t number = first + i * group.size() + group.rank();
      if (number < windows) {
        numbers.push_back(number);
      }
    }
    const auto own = static_cast<double>(numbers.size());
    const double loss =
        stepper.evaluate(text.held_out(numbers.empty() ? std::vector<int64_t>{0} : numbers));
    sum += own > 0 ? own * loss : 0;
    count += own;
  }
  const at::Tensor totals = at::tensor({sum, count}, at::kDouble);
  comm::all_reduce(group, totals, comm::ReduceOp::kSum, "validation loss").wait();
  return (totals[0] / totals[1]).item<double>();
}

}  // namespace fairshard::cli::training

#include "validation.h"

#include <fairshard/comm/collectives.h>

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <vector>

namespace fairshard::cli::training {
namespace {

constexpr int64_t kWindows = 256;

}  // namespace

/// Ranks take turns through the windows, so that the loss is the same text's for any number of
/// them.
double validation_loss(const comm::Group& group, const gpt::Corpus& corpus, Stepper& stepper,
                       int64_t batch) {
  const int64_t at_once = std::max<int64_t>(batch / group.size(), 1);
  double sum = 0;
  double count = 0;
  std::vector<int64_t> numbers;
  for (int64_t number = group.rank(); number < kWindows; number += group.size()) {
    numbers.push_back(number);
    const bool is_last = number + group.size() >= kWindows;
    if (is_last || static_cast<int64_t>(numbers.size()) == at_once) {
      const auto windows = static_cast<double>(numbers.size());
      sum += windows * stepper.evaluate(corpus.held_out(numbers, kWindows));
      count += windows;
      numbers.clear();
    }
  }
  const at::Tensor totals = at::tensor({sum, count}, at::kDouble);
  comm::all_reduce(group, totals, comm::ReduceOp::kSum, "validation loss").wait();
  return (totals[0] / totals[1]).item<double>();
}

}  // namespace fairshard::cli::training

#include "arrival_order.h"

#include <fairshard/comm/collectives.h>

#include <ATen/ops/zeros.h>

namespace fairshard::shard {

ArrivalOrder agree_on_order(const std::vector<std::shared_ptr<FlatGroup>>& groups,
                            const std::vector<ParameterId>& arrivals) {
  const comm::Group& group = groups[0]->mesh().all();
  std::vector<size_t> first(groups.size() + 1);
  for (size_t p = 0; p < groups.size(); ++p) {
    first[p + 1] = first[p] + groups[p]->parameters().size();
  }
  // Positions from 1 on, and 0 for what did not come; then, for each group, whether it has a frozen
  // layout.
  const size_t count = first.back();
  const at::Tensor words = at::zeros({static_cast<int64_t>(count + groups.size())}, at::kLong);
  auto* const positions = words.mutable_data_ptr<int64_t>();
  if (group.rank() == 0) {
    for (size_t i = 0; i < arrivals.size(); ++i) {
      positions[first[arrivals[i].group] + arrivals[i].number] = static_cast<int64_t>(i) + 1;
    }
  }
  for (size_t p = 0; p < groups.size(); ++p) {
    positions[count + p] = groups[p]->is_layout_frozen() ? 1 : 0;
  }
  comm::all_reduce(group, words, comm::ReduceOp::kMax, "order of gradients").wait();

  for (size_t i = 0; i < count; ++i) {
    if (positions[i] == 0) {
      positions[i] = static_cast<int64_t>(2 * count - i);
    }
  }
  ArrivalOrder order;
  for (size_t p = 0; p < groups.size(); ++p) {
    order.positions.emplace_back(positions + first[p], positions + first[p + 1]);
    order.is_frozen.push_back(positions[count + p] != 0);
  }
  return order;
}

}  // namespace fairshard::shard

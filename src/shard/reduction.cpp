#include "reduction.h"

#include <chrono>

namespace fairshard::shard {

void BackwardContext::wait(comm::Work& work) const {
  constexpr std::chrono::milliseconds kLong(20);
  for (const auto& group : groups) {
    while (group->schedule() && !work.is_done_within(kLong) && group->schedule()->start_next()) {
    }
  }
  work.wait();
}

std::vector<ParameterId> PendingBucket::parameters(const BackwardContext& context) const {
  std::vector<ParameterId> ids;
  for (const Slot& slot : layout(context).slots) {
    ids.push_back({group, slot.parameter});
  }
  return ids;
}

at::ScalarType PendingBucket::wire_dtype(const BackwardContext& context) const {
  return context.options.wire_dtype().value_or(values(context).flat().scalar_type());
}

bool PendingBucket::averages_in_collective(const BackwardContext& context) const {
  return is_packed(context) || context.options.comm_hook() ||
         c10::elementSize(wire_dtype(context)) < sizeof(float);
}

std::string PendingBucket::label(const BackwardContext& context) const {
  const FlatBucket& bucket_values = values(context);
  const size_t last = layout(context).slots.size() - 1;
  return c10::str("gradients of bucket ", bucket, ": ", bucket_values.parameter(0).name,
                  last > 0 ? " to " + bucket_values.parameter(last).name : "");
}

}  // namespace fairshard::shard

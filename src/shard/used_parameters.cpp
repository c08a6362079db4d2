#include "used_parameters.h"

#include <ATen/ops/zeros.h>

#include <algorithm>

namespace fairshard::shard {

UsedParameters::UsedParameters(const std::vector<std::shared_ptr<FlatParameters>>& parts) {
  for (const auto& part : parts) {
    is_used_.emplace_back(part->parameters().size());
  }
}

void UsedParameters::agree(const comm::Group& group) {
  int64_t count = 0;
  for (const auto& used : is_used_) {
    count += static_cast<int64_t>(used.size());
  }
  const at::Tensor flags = at::zeros({count}, at::kByte);
  auto* target = flags.mutable_data_ptr<uint8_t>();
  for (const auto& used : is_used_) {
    target = std::copy(used.begin(), used.end(), target);
  }
  comm::all_reduce(group, flags, comm::ReduceOp::kMax, "used parameters").wait();
  const auto* source = flags.const_data_ptr<uint8_t>();
  for (auto& used : is_used_) {
    std::copy(source, source + used.size(), used.begin());
    source += used.size();
  }
}

UsedParameters::Agreement UsedParameters::start_agreement(const comm::Group& group, size_t part,
                                                          const Bucket& bucket,
                                                          const std::string& label) const {
  const at::Tensor flags = at::zeros({static_cast<int64_t>(bucket.slots.size())}, at::kByte);
  std::transform(bucket.slots.begin(), bucket.slots.end(), flags.mutable_data_ptr<uint8_t>(),
                 [&](const Slot& slot) { return has({part, slot.parameter}) ? 1 : 0; });
  return {flags, comm::all_reduce(group, flags, comm::ReduceOp::kMax, label)};
}

void UsedParameters::take(const Agreement& agreement, size_t part, const Bucket& bucket) {
  const auto* const flags = agreement.flags.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < bucket.slots.size(); ++i) {
    is_used_[part][bucket.slots[i].parameter] = flags[i] != 0;
  }
}

}  // namespace fairshard::shard

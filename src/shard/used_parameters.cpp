#include "used_parameters.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fairshard::shard {

UsedParameters::UsedParameters(const std::vector<std::shared_ptr<FlatGroup>>& groups,
                               std::shared_ptr<const Promise> promise)
    : promise_(std::move(promise)) {
  for (const auto& group : groups) {
    by_this_rank_.emplace_back(group->parameters().size());
  }
  is_used_ = promise_ ? promise_->by_any : by_this_rank_;
}

void UsedParameters::check_promise(const std::vector<std::shared_ptr<FlatGroup>>& groups,
                                   const std::vector<ParameterId>& parameters) const {
  for (const auto& [group, number] : parameters) {
    const bool is_used = by_this_rank_[group][number];
    const bool was_used = promise_->by_this_rank[group][number];
    TORCH_CHECK(is_used == was_used, "static_graph promises that every backward uses the same ",
                "parameters, but '", groups[group]->parameters()[number].name, "' had ",
                was_used ? "a" : "no", " gradient in the first one and has ",
                is_used ? "one" : "none", " now: leave static_graph off");
  }
}

UsedParameters::Agreement UsedParameters::start_agreement(const comm::Group& group,
                                                          std::vector<ParameterId> parameters,
                                                          const std::string& label) const {
  Agreement agreement;
  if (promise_) {
    return agreement;
  }
  agreement.parameters = std::move(parameters);
  const auto& ids = agreement.parameters;
  agreement.is_known = std::all_of(ids.begin(), ids.end(), [&](ParameterId id) { return has(id); });
  const auto count = static_cast<int64_t>(ids.size());
  const auto options = at::TensorOptions(at::kByte);
  if (agreement.is_known) {
    agreement.flags = at::ones({count}, options.device(group.control_device()));
  } else {
    agreement.flags = at::empty({count}, options);
    std::transform(ids.begin(), ids.end(), agreement.flags.mutable_data_ptr<uint8_t>(),
                   [&](ParameterId id) { return has(id) ? 1 : 0; });
  }
  agreement.work = comm::all_reduce(group, agreement.flags, comm::ReduceOp::kMax, label);
  return agreement;
}

void UsedParameters::take(Agreement agreement, const Wait& wait) {
  if (agreement.is_known) {
    return;
  }
  wait(agreement.work);
  const auto* const flags = agreement.flags.const_data_ptr<uint8_t>();
  for (size_t i = 0; i < agreement.parameters.size(); ++i) {
    const auto& [group, number] = agreement.parameters[i];
    is_used_[group][number] = flags[i] != 0;
  }
}

std::shared_ptr<const UsedParameters::Promise> UsedParameters::as_promise() const {
  return std::make_shared<Promise>(Promise{by_this_rank_, is_used_});
}

}  // namespace fairshard::shard

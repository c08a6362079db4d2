#pragma once
// Which parameters had a gradient in a backward. See Note [Unused parameters] in grad_reducer.h.

#include "arrival_order.h"
#include <fairshard/comm/collectives.h>

#include <functional>
#include <string>
#include <vector>

namespace fairshard::shard {

/// On this rank; after an agreement, on any rank.
///
/// Note [Nobody waits to agree]: a rank that has used all parameters in question knows what any
/// rank has used, so it takes part in the agreement and does not wait for it. Where control data
/// lives on a device, only a rank that lacks a gradient makes its host wait for that.
class UsedParameters {
 public:
  /// What brings about an agreement.
  struct Agreement {
    std::vector<ParameterId> parameters;
    bool is_known = true;
    at::Tensor flags;
    comm::Work work;
  };
  using Wait = std::function<void(comm::Work&)>;

  /// None of them, at first.
  UsedParameters() = default;
  explicit UsedParameters(const std::vector<std::shared_ptr<FlatGroup>>& groups);

  void add(ParameterId id) { is_used_[id.group][id.number] = true; }
  bool has(ParameterId id) const { return is_used_[id.group][id.number]; }
  /// For each parameter of a group.
  const std::vector<bool>& of(size_t group) const { return is_used_[group]; }

  /// On these parameters. Collective; does not block.
  Agreement start_agreement(const comm::Group& group, std::vector<ParameterId> parameters,
                            const std::string& label) const;
  /// What was agreed on; waits for it if need be.
  void take(Agreement agreement, const Wait& wait);

 private:
  std::vector<std::vector<bool>> is_used_;
};

}  // namespace fairshard::shard

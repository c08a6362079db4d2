#pragma once
// Which parameters had a gradient in a backward. See Note [Unused parameters] in grad_reducer.h.

#include "arrival_order.h"
#include <fairshard/comm/collectives.h>

#include <string>
#include <vector>

namespace fairshard::shard {

/// On this rank; after an agreement, on any rank.
class UsedParameters {
 public:
  /// What brings about an agreement on one bucket.
  struct Agreement {
    at::Tensor flags;
    comm::Work work;
  };

  /// None of them, at first.
  UsedParameters() = default;
  explicit UsedParameters(const std::vector<std::shared_ptr<FlatParameters>>& parts);

  void add(ParameterId id) { is_used_[id.part][id.number] = true; }
  bool has(ParameterId id) const { return is_used_[id.part][id.number]; }
  /// For each parameter of a part.
  const std::vector<bool>& of(size_t part) const { return is_used_[part]; }

  /// On all parameters. Collective.
  void agree(const comm::Group& group);
  /// On one bucket of a part. Collective.
  Agreement start_agreement(const comm::Group& group, size_t part, const Bucket& bucket,
                            const std::string& label) const;
  /// Once its work is done.
  void take(const Agreement& agreement, size_t part, const Bucket& bucket);

 private:
  std::vector<std::vector<bool>> is_used_;
};

}  // namespace fairshard::shard

#pragma once
// The order in which gradients come, on which all ranks agree.

#include <fairshard/shard/flat_group.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace fairshard::shard {

/// A parameter by its flat group and its number there.
struct ParameterId {
  size_t group;
  size_t number;
};

struct ArrivalOrder {
  /// For each group and parameter, its place among all. What did not come stands after all that
  /// came, the last of it first.
  std::vector<std::vector<int64_t>> positions;
  /// For each group, whether any rank has state that depends on its layout.
  std::vector<bool> is_frozen;
};

/// Rank 0's order, from what came there in one backward. Collective.
ArrivalOrder agree_on_order(const std::vector<std::shared_ptr<FlatGroup>>& groups,
                            const std::vector<ParameterId>& arrivals);

}  // namespace fairshard::shard

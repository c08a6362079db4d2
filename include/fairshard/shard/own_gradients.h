#pragma once
// What a rank has of the reduced gradients.

#include <fairshard/shard/flat_parameters.h>

#include <memory>
#include <utility>
#include <vector>

namespace fairshard::shard {

/// The parameters of all parts with this rank's part of their gradients, to be compared with each
/// rank's own. Throws within join(), where some ranks have none.
std::vector<std::pair<at::Tensor, at::Tensor>> gradients_to_compare(
    const std::vector<std::shared_ptr<FlatParameters>>& parts);

}  // namespace fairshard::shard

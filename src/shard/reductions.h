#pragma once
// Which reduction a flat group has.

#include "reduction.h"

#include <memory>

namespace fairshard::shard {

/// The mode of a flat group, whose buckets are stepped in backward if `do_step` is true.
std::unique_ptr<Reduction> make_reduction(BackwardContext& context, const ReducedGroup& group,
                                          bool do_step);

}  // namespace fairshard::shard

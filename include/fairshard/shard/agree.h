#pragma once
// Ranks that build different models find out before anything is communicated between them.

#include <fairshard/comm/group.h>
#include <fairshard/shard/layout.h>

#include <string>
#include <vector>

namespace fairshard::shard {

/// Throws c10::ValueError on every rank if names, shapes, dtypes, order or number of the parameters
/// differ between ranks, with the first difference to rank 0's; or else what they are for, which is
/// told in words. Collective; blocks.
void check_same_parameters(const comm::Group& group, const std::vector<Parameter>& parameters,
                           const std::string& purpose = "");

}  // namespace fairshard::shard

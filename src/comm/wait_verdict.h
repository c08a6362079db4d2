#pragma once
// Who holds up the others.

#include "wait_round.h"

#include <string>

namespace fairshard::comm {

/// The backend in which ranks wait, as an index into WaitNote::standings: where the asker has
/// waited longest.
size_t waiting_backend(const WaitRound& round);

std::string verdict_of(const WaitRound& round);

/// Whether all ranks say that they have started nothing in the group.
bool is_unused(const WaitRound& round);

}  // namespace fairshard::comm

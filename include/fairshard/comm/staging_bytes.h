#pragma once
// What a reduction needs beside its tensors, for who plans memory.

#include <cstdint>

namespace fairshard::comm {

/// The memory that peers' parts arrive in when a reduction over Gloo reduces a part of so many
/// bytes on every rank. It is kept for the next one.
int64_t staging_bytes(int ranks, int64_t part_bytes, bool is_all_reduce);

}  // namespace fairshard::comm

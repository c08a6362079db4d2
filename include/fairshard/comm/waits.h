#pragma once
// How long a rank has been held up by others.

#include <fairshard/comm/group.h>

namespace fairshard::comm {

/// The seconds that callers of Work::wait() have waited since the group was made: communication
/// that nothing was computed beside. Over NCCL it is a stream that waits, which is not counted.
/// Groups on one process group share it. Local.
double waited_s(const Group& group);

}  // namespace fairshard::comm

#pragma once
// How long a rank has been held up by others, and by whom.

#include <fairshard/comm/group.h>

#include <cstdint>
#include <string>

namespace fairshard::comm {

/// The seconds that callers of Work::wait() have waited since the group was made: communication
/// that nothing was computed beside. Over NCCL it is a stream that waits, which is not counted.
/// Groups on one process group share it. Local.
double waited_s(const Group& group);

/// What each rank of the group waits for, as a table for people, and who holds up the others. Asks
/// all ranks, whatever they do; their programs take no part in it. A wait that lasts for long is
/// explained so in the log by itself: see explain_waits_after(). Local, and may be called while
/// other threads wait. Blocks until the ranks have answered: mostly for a second or two, for five
/// if one does not (or 30 milliseconds per rank, if that is more), and as long again if a table is
/// just being made.
std::string explain_waits(const Group& group);

/// Waits in this group that are longer than this are explained in the log, once each; not given, it
/// is a quarter of the group's timeout, and at most two minutes. The first rank that waits so long
/// asks the others. Local.
void explain_waits_after(const Group& group, double seconds);

/// From now on, when this signal (SIGUSR1, say) comes to this process, it logs a table of each
/// group that it is a member of and that somebody has used, also while all threads hang. Each table
/// is gathered after the signal; signals that come together share one. Local.
void explain_waits_on_signal(int signal);

/// Tells which step this rank has finished, for those explanations. An OSS counts its own; a
/// trainer that counts otherwise calls this after each of its steps. Local.
void note_step(const Group& group, int64_t step);

}  // namespace fairshard::comm

#pragma once
// What a link between two ranks can do.

#include <string>

namespace fairshard::comm {

/// From one rank to another: `from` has called `to`, and has sent.
struct Link {
  int from = 0;         ///< the rank that has called
  int to = 0;           ///< the rank that was called
  std::string address;  ///< of `to`, with the port; empty if it has not said any
  std::string fault;    ///< what went wrong first; empty if all has been measured

  double connect_s = 0;             ///< until `to` had answered a call
  double latency_s = 0;             ///< half of the shortest round trip
  double bytes_per_s = 0;           ///< by itself, as `to` has seen it
  double together_bytes_per_s = 0;  ///< while all ranks send to all
  double clock_offset_s = 0;        ///< how much the clock of `to` is ahead
  double clock_error_s = 0;         ///< how much that may be wrong
};

}  // namespace fairshard::comm

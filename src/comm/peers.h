#pragma once
// The other ranks of a collective.

#include "call.h"

namespace fairshard::comm {

/// Calls function(peer), beginning with the rank after this one: were all ranks to begin with the
/// same one, that one's link would be busy and the others idle.
template <typename Function>
void for_each_peer(const Call& call, Function function) {
  for (int distance = 1; distance < call.size; ++distance) {
    function((call.rank + distance) % call.size);
  }
}

}  // namespace fairshard::comm

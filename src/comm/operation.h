#pragma once
// A started collective as the progress thread sees it.

#include "awaited.h"

#include <chrono>

namespace fairshard::comm {

using Instant = std::chrono::steady_clock::time_point;

/// How long an operation may wait, and where it says for whom.
struct Patience {
  Instant deadline;
  Awaited& awaited;
};

/// Note [Long sends]: Gloo writes to a socket at once, on the thread that posts, if the peer is
/// ready to receive. For megabytes that takes milliseconds, and the caller is often in the midst of
/// backward, with a team of OpenMP threads that waits for it. So long messages are not posted where
/// a collective is called, but by the progress thread. Short ones are: another thread would cost
/// more time to wake.
class Operation {
 public:
  virtual ~Operation() = default;
  /// Posts what is long. Called once, before advance(), as soon as no other advance() is running.
  virtual void start() {}
  /// Waits for what has been posted and does what follows. Returns whether all is done; if not, it
  /// has posted more and is called again, after the collectives behind it.
  virtual bool advance(const Patience& patience) = 0;
  /// Makes a running advance() throw. Called from another thread.
  virtual void abort() = 0;
};

}  // namespace fairshard::comm

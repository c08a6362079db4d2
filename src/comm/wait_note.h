#pragma once
// What a rank writes for others when somebody asks why ranks wait.

#include "standing.h"

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fairshard::comm {

/// Where a rank runs.
struct Whereabouts {
  std::string host;
  int64_t pid = 0;
  /// The same for processes that see each other's pids.
  std::string machine;

  static Whereabouts own();
};

/// Processes end and stop without a word; on one's own machine the system tells.
enum class ProcessState { kUnknown, kAlive, kStopped, kEnded };
ProcessState state_of_process(const Whereabouts& process, const Whereabouts& own);

/// A Standing that can travel: clocks differ, so it has ages.
struct StandingNote {
  struct Call {
    uint64_t sequence = 0;
    std::string text;
    double age_s = 0;
  };
  std::optional<Call> current;
  std::optional<Call> last;
  uint64_t started = 0;
  Awaited::Value awaited;
};

struct WaitNote {
  Whereabouts where;
  /// The last step that the rank has finished, or -1.
  int64_t step = -1;
  /// One for each backend of the group.
  std::vector<StandingNote> standings;

  std::string encoded() const;
  /// Nothing if it is something else.
  static std::optional<WaitNote> decoded(const std::string& text);
};

StandingNote to_note(const Standing& standing);

/// "12 s", or "1.2 s" while that says more.
std::string seconds_text(double seconds);

}  // namespace fairshard::comm

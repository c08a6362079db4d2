#pragma once
// What all ranks have written when one has asked.

#include "wait_note.h"

#include <optional>
#include <string>
#include <vector>

namespace fairshard::comm {

/// What is known of all ranks when one has asked.
struct WaitRound {
  struct Rank {
    /// What it has answered.
    std::optional<WaitNote> answer;
    /// Where it runs, if it has ever said so.
    std::optional<Whereabouts> where;
    ProcessState state = ProcessState::kUnknown;
  };

  /// Who has asked. Has an answer.
  int asker = 0;
  std::vector<Rank> ranks;
  /// Whether the asker has gone on meanwhile.
  bool has_moved = false;
  /// Why others cannot have answered, if so.
  std::string trouble;
};

}  // namespace fairshard::comm

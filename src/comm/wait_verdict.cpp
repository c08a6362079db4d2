#include "wait_verdict.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

namespace fairshard::comm {
namespace {

/// So many ranks are named one by one.
constexpr size_t kNamed = 8;

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < std::min(parts.size(), kNamed); ++i) {
    text += (i == 0 ? "" : "; ") + parts[i];
  }
  return parts.size() > kNamed ? c10::str(text, "; and ", parts.size() - kNamed, " more ranks")
                               : text;
}

std::string rank_list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kNamed); ++i) {
    text += c10::str(i == 0 ? "" : ", ", ranks[i]);
  }
  return ranks.size() > kNamed ? c10::str(text, " and ", ranks.size() - kNamed, " more") : text;
}

/// Looks at one backend's collectives on all ranks.
class Judge {
 public:
  explicit Judge(const WaitRound& round) : round_(round), backend_(waiting_backend(round)) {
    for (size_t rank = 0; rank < round.ranks.size(); ++rank) {
      const StandingNote* const standing = standing_of(static_cast<int>(rank));
      if (!standing) {
        silent_.push_back(static_cast<int>(rank));
      } else if (standing->current &&
                 (!awaited_ || standing->current->sequence < awaited_->sequence)) {
        awaited_ = &*standing->current;
      }
    }
  }

  std::string verdict() const {
    if (round_.has_moved) {
      return c10::str("nobody is held up: rank ", round_.asker, " has gone on meanwhile");
    }
    if (!silent_.empty()) {
      return of_silent();
    }
    if (!awaited_) {
      return "no rank waits in a collective";
    }
    for (const auto reason : {&Judge::of_late, &Judge::of_different, &Judge::of_links}) {
      if (std::string text = (this->*reason)(); !text.empty()) {
        return text;
      }
    }
    return c10::str("all ranks have started ", awaited_->text,
                    ", and it does not end: look at the network and at the backend");
  }

 private:
  const StandingNote* standing_of(int rank) const {
    const auto& answer = round_.ranks[rank].answer;
    return answer && backend_ < answer->standings.size() ? &answer->standings[backend_] : nullptr;
  }

  std::string of_silent() const {
    std::vector<std::string> parts;
    for (const int rank : silent_) {
      parts.push_back(silence_of(rank));
    }
    std::string text = joined(parts);
    if (!round_.trouble.empty()) {
      text += ": " + round_.trouble;
    }
    const StandingNote& asker = *standing_of(round_.asker);
    if (asker.last) {
      text += c10::str("; all were last together in ", asker.last->text, ", ",
                       seconds_text(asker.last->age_s), " ago", after_step(round_.asker));
    }
    return text;
  }

  std::string silence_of(int rank) const {
    const WaitRound::Rank& silent = round_.ranks[rank];
    if (!silent.where) {
      return c10::str(
          "rank ", rank,
          round_.trouble.empty() ? " has not made this group yet, or only just" : " was not heard");
    }
    const std::string who =
        c10::str("rank ", rank, " (pid ", silent.where->pid, " on ", silent.where->host, ")");
    switch (silent.state) {
      case ProcessState::kEnded:
        return who + " has ended";
      case ProcessState::kStopped:
        return who + " is stopped, by a SIGSTOP or a debugger";
      case ProcessState::kAlive:
        return who + " does not answer, but its process is alive: it may have let go of the group";
      case ProcessState::kUnknown:
        break;
    }
    return who + " does not answer: it has ended, is stopped or cannot reach the store";
  }

  std::string after_step(int rank) const {
    const int64_t step = round_.ranks[rank].answer->step;
    return step < 0 ? "" : c10::str(", after step ", step);
  }

  /// Ranks that have not started what others wait in.
  std::string of_late() const {
    std::vector<std::string> parts;
    for (int rank = 0; rank < static_cast<int>(round_.ranks.size()); ++rank) {
      const StandingNote& standing = *standing_of(rank);
      if (standing.started > awaited_->sequence) {
        continue;
      }
      std::string last = "has been in none before";
      if (standing.last) {
        last = c10::str("its last was ", standing.last->text, ", ",
                        seconds_text(standing.last->age_s), " ago", after_step(rank));
      }
      parts.push_back(c10::str("rank ", rank, " has not started ", awaited_->text,
                               ": it is in no collective, and ", last));
    }
    return joined(parts);
  }

  /// Ranks that are in another collective of the same number.
  std::string of_different() const {
    std::vector<std::pair<std::string, std::vector<int>>> calls;
    for (int rank = 0; rank < static_cast<int>(round_.ranks.size()); ++rank) {
      const auto& call = standing_of(rank)->current;
      if (!call || call->sequence != awaited_->sequence) {
        continue;
      }
      const auto found = std::find_if(calls.begin(), calls.end(),
                                      [&](const auto& entry) { return entry.first == call->text; });
      (found == calls.end() ? calls.emplace_back(call->text, std::vector<int>()) : *found)
          .second.push_back(rank);
    }
    if (calls.size() < 2) {
      return "";
    }
    std::vector<std::string> parts;
    for (const auto& [text, ranks] : calls) {
      parts.push_back(c10::str(rank_list(ranks), " called ", text));
    }
    return "the ranks disagree: " + joined(parts) +
           ": they run other code or another model, or one has skipped a collective";
  }

  /// Ranks that wait for what another has sent. Of messages those ahead of the data come first: who
  /// waits for data may wait for a rank that waits itself.
  std::string of_links() const {
    for (const Awaits what : {Awaits::kHeader, Awaits::kMessage, Awaits::kSent}) {
      std::vector<std::string> parts;
      bool is_one_way = true;
      for (int rank = 0; rank < static_cast<int>(round_.ranks.size()); ++rank) {
        const int peer = peer_of(rank, what);
        const bool is_mutual = peer >= 0 && peer_of(peer, what) == rank;
        if (peer >= 0 && !(is_mutual && peer < rank)) {
          parts.push_back(fault_of(rank, peer, what, is_mutual));
          is_one_way &= !is_mutual;
        }
      }
      if (!parts.empty()) {
        return c10::str(joined(parts), ", which all ranks have started: ",
                        is_one_way ? "that direction of the link is blocked"
                                   : "their link is blocked, in one direction at least",
                        ", or very slow");
      }
    }
    return "";
  }

  /// For which rank's message this one waits; -1 if it does not.
  int peer_of(int rank, Awaits what) const {
    const StandingNote& standing = *standing_of(rank);
    return standing.current && standing.awaited.what == what ? standing.awaited.peer : -1;
  }

  std::string fault_of(int rank, int peer, Awaits what, bool is_mutual) const {
    const std::string call = " in " + standing_of(rank)->current->text;
    if (is_mutual) {
      return c10::str("ranks ", rank, " and ", peer,
                      what == Awaits::kSent ? " cannot send to" : " hear nothing of", " each other",
                      call);
    }
    return c10::str("rank ", rank, what == Awaits::kSent ? " cannot send to" : " hears nothing of",
                    " rank ", peer, call);
  }

  const WaitRound& round_;
  const size_t backend_;
  std::vector<int> silent_;
  /// The first collective that somebody waits in.
  const StandingNote::Call* awaited_ = nullptr;
};

}  // namespace

size_t waiting_backend(const WaitRound& round) {
  const auto& standings = round.ranks[round.asker].answer->standings;
  size_t found = 0;
  double longest = -1;
  for (size_t i = 0; i < standings.size(); ++i) {
    if (standings[i].current && standings[i].current->age_s > longest) {
      longest = standings[i].current->age_s;
      found = i;
    }
  }
  return found;
}

std::string verdict_of(const WaitRound& round) { return Judge(round).verdict(); }

bool is_unused(const WaitRound& round) {
  return std::all_of(round.ranks.begin(), round.ranks.end(), [](const WaitRound::Rank& rank) {
    return rank.answer &&
           std::all_of(rank.answer->standings.begin(), rank.answer->standings.end(),
                       [](const StandingNote& standing) { return standing.started == 0; });
  });
}

}  // namespace fairshard::comm

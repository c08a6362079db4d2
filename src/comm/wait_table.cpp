#include "wait_table.h"

#include "wait_verdict.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>

namespace fairshard::comm {
namespace {

/// In larger groups, ranks that say the same as the asker have no row.
constexpr size_t kRows = 16;

using Row = std::array<std::string, 5>;

std::string where_text(const WaitRound::Rank& rank) {
  return rank.where ? c10::str(rank.where->host, ", pid ", rank.where->pid) : "?";
}

std::string awaited_text(const Awaited::Value& awaited) {
  switch (awaited.what) {
    case Awaits::kHeader:
      return c10::str(", waits for rank ", awaited.peer, " to come");
    case Awaits::kMessage:
      return c10::str(", waits for data of rank ", awaited.peer);
    case Awaits::kSent:
      return c10::str(", waits for rank ", awaited.peer, " to take data");
    case Awaits::kNothing:
      break;
  }
  return "";
}

std::string state_text(ProcessState state) {
  switch (state) {
    case ProcessState::kEnded:
      return "has ended";
    case ProcessState::kStopped:
      return "is stopped";
    case ProcessState::kAlive:
      return "does not answer, but is alive";
    case ProcessState::kUnknown:
      break;
  }
  return "does not answer";
}

Row row_of(const WaitRound& round, size_t rank, size_t backend) {
  const WaitRound::Rank& known = round.ranks[rank];
  Row row{std::to_string(rank), where_text(known), "?", "", ""};
  if (!known.answer || backend >= known.answer->standings.size()) {
    row[3] = round.has_moved         ? "has not answered so far"
             : known.where           ? state_text(known.state)
             : round.trouble.empty() ? "has not made this group yet, or only just"
                                     : "was not heard";
    return row;
  }
  const StandingNote& standing = known.answer->standings[backend];
  row[2] = known.answer->step < 0 ? "-" : std::to_string(known.answer->step);
  if (standing.current) {
    row[3] = standing.current->text + awaited_text(standing.awaited);
    row[4] = seconds_text(standing.current->age_s);
  } else if (standing.last) {
    row[3] = c10::str("no collective; last ", standing.last->text);
    row[4] = seconds_text(standing.last->age_s);
  } else {
    row[3] = "no collective so far";
  }
  return row;
}

/// Whether a rank is where the asker is.
bool is_beside_asker(const WaitRound& round, size_t rank, size_t backend) {
  const auto& answer = round.ranks[rank].answer;
  if (!answer || backend >= answer->standings.size()) {
    return false;
  }
  const auto& own = round.ranks[round.asker].answer->standings[backend].current;
  const auto& call = answer->standings[backend].current;
  return own && call && own->text == call->text;
}

std::string aligned(const std::vector<Row>& rows) {
  std::array<size_t, std::tuple_size_v<Row>> widths{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += "  " + row[i] + std::string(widths[i] - row[i].size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace

WaitReport report_of(const WaitRound& round) {
  const size_t backend = waiting_backend(round);
  std::vector<Row> rows{{"rank", "where", "step", "in", "since"}};
  size_t beside = 0;
  for (size_t rank = 0; rank < round.ranks.size(); ++rank) {
    const bool is_asker = static_cast<int>(rank) == round.asker;
    if (round.ranks.size() > kRows && !is_asker && is_beside_asker(round, rank, backend)) {
      beside += 1;
    } else {
      rows.push_back(row_of(round, rank, backend));
    }
  }
  WaitReport report;
  report.verdict = verdict_of(round);
  report.table = c10::str("what the ", round.ranks.size(), " ranks of a group wait for, as rank ",
                          round.asker, " has gathered it:\n", aligned(rows));
  if (beside > 0) {
    report.table += c10::str("  and ", beside, " more ranks are where rank ", round.asker, " is\n");
  }
  report.table += "verdict: " + report.verdict;
  return report;
}

}  // namespace fairshard::comm

#pragma once
// Asking what ranks wait for, and reading the answer.

#include <fairshard/comm/waits.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fairshard::test {

/// After which waits are explained. Ranks look for questions after half of it.
constexpr double kSoon_s = 0.1;
/// Of groups in which somebody is waited for.
constexpr double kWaits_timeout_s = 120;

bool has(const std::string& text, const std::string& words);
/// Throws if it has not.
void require(const std::string& text, const std::string& words);

/// The row of a rank in a table.
std::string row(const std::string& table, int rank);

/// Asks until the table says so, and rows of these ranks do: others may be on their way to where
/// they will wait.
std::string explain_until(const comm::Group& group, const std::vector<std::string>& words,
                          const std::vector<std::pair<int, std::string>>& rows = {});

/// Returns when all ranks have come here, once for each group: over its store, so that collectives
/// may hang and ranks may end then.
void await_all(const comm::Group& group);

/// The pids of all ranks.
std::vector<int64_t> pids_of(const comm::Group& group);

}  // namespace fairshard::test

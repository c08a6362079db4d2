#include "waits.h"

#include <fairshard/comm/collectives.h>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>

namespace fairshard::test {

bool has(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}

std::string row(const std::string& table, int rank) {
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind(c10::str("  ", rank, " "), 0) == 0) {
      return line;
    }
  }
  return "";
}

std::string explain_until(const comm::Group& group, const std::vector<std::string>& words,
                          const std::vector<std::pair<int, std::string>>& rows) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::string table;
  do {
    table = comm::explain_waits(group);
    if (std::all_of(words.begin(), words.end(),
                    [&](const auto& each) { return has(table, each); }) &&
        std::all_of(rows.begin(), rows.end(),
                    [&](const auto& each) { return has(row(table, each.first), each.second); })) {
      return table;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  for (const auto& [rank, each] : rows) {
    TORCH_CHECK(has(row(table, rank), each), "rank ", rank, ": no '", each, "' in: ", table);
  }
  TORCH_CHECK(false, "no '", c10::Join("' and '", words), "' in: ", table);
}

void require(const std::string& text, const std::string& words) {
  TORCH_CHECK(has(text, words), "no '", words, "' in: ", text);
}

void await_all(const comm::Group& group) {
  const auto store = group.process_group()->getStore();
  std::vector<std::string> keys;
  for (int rank = 0; rank < group.size(); ++rank) {
    keys.push_back(c10::str(rank, " has come"));
  }
  store->set(keys[group.rank()], "1");
  store->wait(keys, std::chrono::seconds(60));
}

std::vector<int64_t> pids_of(const comm::Group& group) {
  const at::Tensor all = at::empty({group.size()}, at::kLong);
  comm::all_gather(group, all, at::full({1}, int64_t{getpid()}), "pids").wait();
  const auto* const numbers = all.const_data_ptr<int64_t>();
  return {numbers, numbers + all.numel()};
}

}  // namespace fairshard::test

#include "page_data.h"

#include "curve.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <set>

namespace fairshard::cli::report {
namespace {

using Json = nlohmann::json;

constexpr size_t kCurvePoints = 2000;
constexpr size_t kTrendPoints = 400;
/// Of the steps at the end over which the training loss is averaged.
constexpr size_t kLastSteps = 20;
/// Into so many parts of a run the table of waits is divided.
constexpr size_t kWaitParts = 6;

/// Six digits are more than a screen shows, and a third of the bytes of all of them.
Json number(double value) {
  if (!std::isfinite(value)) {
    return nullptr;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", value);
  const double rounded = std::strtod(text, nullptr);
  const bool is_whole = std::abs(value) < 1e15 && value == std::trunc(value);
  return is_whole ? Json(static_cast<int64_t>(value)) : Json(rounded);
}

template <typename Record>
std::vector<double> column(const std::vector<Record>& records, double Record::*member) {
  std::vector<double> values;
  values.reserve(records.size());
  for (const auto& record : records) {
    const double value = record.*member;
    values.push_back(std::isfinite(value) ? value : kMissing);
  }
  return values;
}

Json points(const RunLog& log, const std::vector<double>& values,
            const std::vector<size_t>& chosen) {
  Json result = {{"step", Json::array()}, {"time_s", Json::array()}, {"value", Json::array()}};
  for (const size_t i : chosen) {
    result["step"].push_back(log.steps[i].step);
    result["time_s"].push_back(number(log.steps[i].time_s));
    result["value"].push_back(number(values[i]));
  }
  return result;
}

std::vector<size_t> evenly_spaced(size_t count, size_t limit) {
  std::vector<size_t> chosen;
  const size_t most = std::min(count, limit);
  for (size_t i = 0; i < most; ++i) {
    chosen.push_back(most > 1 ? i * (count - 1) / (most - 1) : 0);
  }
  return chosen;
}

/// The points themselves, and what is seen of them from afar.
Json curve(const RunLog& log, double StepRecord::*member) {
  const auto values = column(log.steps, member);
  const double half_life = std::max(2.0, static_cast<double>(values.size()) / 100);
  return {{"points", points(log, values, thinned(values, kCurvePoints))},
          {"trend", points(log, running_mean(values, half_life),
                           evenly_spaced(values.size(), kTrendPoints))}};
}

Json mean_split(const RunLog& log) {
  std::map<std::string, double> sums;
  double count = 0;
  // The first step of a run sets things up, and would stand for many.
  for (size_t i = log.steps.size() > 1 ? 1 : 0; i < log.steps.size(); ++i) {
    count += log.steps[i].split_s.empty() ? 0 : 1;
    for (const auto& [kind, seconds] : log.steps[i].split_s) {
      sums[kind] += std::isfinite(seconds) ? seconds : 0;
    }
  }
  Json result = Json::object();
  for (const auto& [kind, sum] : sums) {
    result[kind] = number(sum / count);
  }
  return result;
}

Json summary(const RunLog& log) {
  auto speeds = column(log.steps, &StepRecord::tokens_per_s);
  if (speeds.size() > 1) {
    speeds.erase(speeds.begin());
  }
  const auto losses = column(log.steps, &StepRecord::loss);
  const auto last = losses.end() - static_cast<std::ptrdiff_t>(std::min(losses.size(), kLastSteps));
  double peak = kMissing;
  for (const auto& [rank, memory] : log.memory) {
    peak = std::fmax(peak, memory.peak_bytes);
  }
  const bool is_lost = !losses.empty() && std::isnan(losses.back());
  return {
      {"steps", log.steps.empty() ? 0 : log.steps.back().step},
      {"time_s", log.steps.empty() ? Json(nullptr) : number(log.steps.back().time_s)},
      {"training_loss", number(is_lost ? kMissing : mean({last, losses.end()}))},
      {"validation_loss", number(log.validations.empty() ? kMissing : log.validations.back().loss)},
      {"tokens_per_s", number(median(speeds))},
      {"peak_bytes", number(peak)},
      {"sent_bytes", number(mean(column(log.steps, &StepRecord::sent_bytes)))}};
}

Json events(const RunLog& log) {
  Json result = Json::array();
  for (const auto& event : log.events) {
    result.push_back({{"step", event.step},
                      {"time_s", number(event.time_s)},
                      {"what", event.what},
                      {"detail", event.detail}});
  }
  return result;
}

Json validations(const RunLog& log) {
  Json result = {{"step", Json::array()}, {"time_s", Json::array()}, {"value", Json::array()}};
  const auto losses = column(log.validations, &ValidationRecord::loss);
  for (const size_t i : thinned(losses, kCurvePoints)) {
    result["step"].push_back(log.validations[i].step);
    result["time_s"].push_back(number(log.validations[i].time_s));
    result["value"].push_back(number(losses[i]));
  }
  return result;
}

Json memory(const RunLog& log) {
  Json result = Json::array();
  for (const auto& [rank, memory] : log.memory) {
    Json bytes = Json::object();
    for (const auto& [kind, count] : memory.bytes) {
      bytes[kind] = number(count);
    }
    result.push_back({{"rank", rank}, {"bytes", bytes}, {"peak_bytes", number(memory.peak_bytes)}});
  }
  return result;
}

/// Of the steps of these records: what each rank has waited in a mean step.
Json mean_waits(const WaitsRecord* begin, const WaitsRecord* end) {
  std::vector<double> sums(begin->waited_s.size());
  for (const WaitsRecord* record = begin; record != end; ++record) {
    for (size_t rank = 0; rank < sums.size(); ++rank) {
      sums[rank] += record->waited_s[rank];
    }
  }
  const int64_t last = (end - 1)->last_step;
  Json seconds = Json::array();
  for (const double sum : sums) {
    seconds.push_back(number(sum / static_cast<double>(last - begin->first_step + 1)));
  }
  return {{"first_step", begin->first_step}, {"last_step", last}, {"seconds", seconds}};
}

/// Of equal parts of the run, in their order.
Json waits(const RunLog& log) {
  Json result = Json::array();
  const size_t parts = std::min(log.waits.size(), kWaitParts);
  const WaitsRecord* const records = log.waits.data();
  for (size_t part = 0; part < parts; ++part) {
    result.push_back(mean_waits(records + log.waits.size() * part / parts,
                                records + log.waits.size() * (part + 1) / parts));
  }
  return result;
}

Json run_data(const RunLog& log) {
  return {{"name", log.name},
          {"file", log.file},
          {"options", log.options},
          {"facts", log.facts},
          {"ranks", number(log.ranks)},
          {"parameters", number(log.parameters)},
          {"tokens_per_step", number(log.tokens_per_step)},
          {"planned_steps", number(log.planned_steps)},
          {"is_thinned", log.steps.size() > kCurvePoints},
          {"summary", summary(log)},
          {"loss", curve(log, &StepRecord::loss)},
          {"validation", validations(log)},
          {"tokens_per_s", curve(log, &StepRecord::tokens_per_s)},
          {"sent_bytes", curve(log, &StepRecord::sent_bytes)},
          {"split_s", mean_split(log)},
          {"memory", memory(log)},
          {"waits", waits(log)},
          {"events", events(log)},
          {"end", log.end},
          {"warnings", log.warnings}};
}

}  // namespace

std::string page_data(const std::vector<RunLog>& logs) {
  Json runs = Json::array();
  for (const auto& log : logs) {
    runs.push_back(run_data(log));
  }
  const Json data = {{"runs", runs}, {"curve_points", kCurvePoints}, {"last_steps", kLastSteps}};
  const auto text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
  // Neither the end of the script element nor a comment can begin without this character.
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace fairshard::cli::report

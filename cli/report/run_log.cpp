#include "run_log.h"

#include "../plain_file.h"

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <optional>
#include <system_error>

namespace fairshard::cli::report {
namespace {

using Json = nlohmann::json;

double number_in(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : kMissing;
}

std::string text_in(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::map<std::string, double> numbers_in(const Json& object, const char* name) {
  std::map<std::string, double> result;
  const auto found = object.find(name);
  if (found != object.end() && found->is_object()) {
    for (const auto& [key, value] : found->items()) {
      if (value.is_number()) {
        result[key] = value.get<double>();
      }
    }
  }
  return result;
}

std::vector<double> list_in(const Json& object, const char* name) {
  std::vector<double> result;
  const auto found = object.find(name);
  if (found != object.end() && found->is_array()) {
    for (const auto& value : *found) {
      result.push_back(value.is_number() ? value.get<double>() : kMissing);
    }
  }
  return result;
}

std::string readable(const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_array()) {
    std::string text;
    for (const auto& item : value) {
      text += (text.empty() ? "" : ", ") + (item.is_structured() ? "..." : readable(item));
    }
    return text;
  }
  return value.is_object() ? "..." : value.is_null() ? "" : value.dump();
}

/// Follows the lines of one file.
class LogReader {
 public:
  explicit LogReader(std::string file) { log_.file = std::move(file); }

  RunLog read();

 private:
  void take_line(const std::string& line);
  void take(const Json& record, const std::string& kind);
  void take_run(const Json& run);
  void take_step(const Json& record);
  void take_memory(const Json& record);
  void take_waits(const Json& record);
  int64_t whole_number_in(const Json& record, const char* name) const;
  int64_t step_of(const Json& record) const { return whole_number_in(record, "step"); }
  double time_of(const Json& record);
  std::string place() const { return log_.file + ":" + std::to_string(line_); }
  void settle_broken_line(bool may_be_broken);

  RunLog log_;
  int64_t line_ = 0;
  bool has_run_ = false;
  bool is_memory_of_this_stretch_ = false;
  /// The step of the last line of waits, or of the one before the stretch.
  int64_t waits_until_ = 0;
  bool are_waits_of_this_stretch_ = false;
  /// Where the present stretch begins, and how far it has come.
  double begin_s_ = 0;
  double latest_s_ = 0;
  /// What is wrong with the line before, if it is no JSON.
  std::optional<std::string> broken_;
};

RunLog LogReader::read() {
  require_plain_file(log_.file);
  std::ifstream stream(log_.file, std::ios::binary);
  TORCH_CHECK_VALUE(stream.is_open(), log_.file,
                    ": cannot be opened: ", std::generic_category().message(errno));
  for (std::string line; std::getline(stream, line);) {
    ++line_;
    if (line.find_first_not_of(" \t\r") != std::string::npos) {
      take_line(line);
    }
  }
  TORCH_CHECK_VALUE(!stream.bad(), log_.file, ": cannot be read after line ", line_);
  settle_broken_line(has_run_);
  TORCH_CHECK_VALUE(line_ > 0, log_.file, ": the file is empty");
  TORCH_CHECK_VALUE(
      has_run_, log_.file,
      ": there is no line of kind \"run\". Is it what 'fairshard train --log' wrote?");
  return std::move(log_);
}

void LogReader::take_line(const std::string& line) {
  const auto record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (record.is_discarded()) {
    settle_broken_line(false);
    broken_ = place() + ": not JSON: " + line.substr(0, 60) + (line.size() > 60 ? "..." : "");
    return;
  }
  TORCH_CHECK_VALUE(record.is_object(), place(), ": a JSON object is expected, but it is ",
                    record.type_name());
  const auto kind = text_in(record, "kind");
  // A run that was killed while it wrote a line may have been resumed into the same file.
  settle_broken_line(has_run_ && kind == "run");
  take(record, kind);
}

void LogReader::settle_broken_line(bool may_be_broken) {
  TORCH_CHECK_VALUE(!broken_ || may_be_broken, *broken_);
  if (broken_) {
    log_.warnings.push_back(*broken_ + " (a line that was cut off; passed over)");
    broken_.reset();
  }
}

void LogReader::take(const Json& record, const std::string& kind) {
  if (kind == "run") {
    take_run(record);
    return;
  }
  TORCH_CHECK_VALUE(has_run_ || (kind != "step" && kind != "memory" && kind != "waits"), place(),
                    ": a line of kind \"", kind, "\" stands before the first of kind \"run\"");
  if (kind == "step") {
    take_step(record);
  } else if (kind == "memory") {
    take_memory(record);
  } else if (kind == "waits") {
    take_waits(record);
  } else if (kind == "validation") {
    log_.validations.push_back({step_of(record), time_of(record), number_in(record, "loss")});
  } else if (kind == "event") {
    log_.events.push_back(
        {step_of(record), time_of(record), text_in(record, "what"), text_in(record, "detail")});
  } else if (kind == "end") {
    time_of(record);
    log_.end = text_in(record, "reason");
  }
}

void LogReader::take_run(const Json& run) {
  const double first = number_in(run, "first_step");
  const auto is_undone = [&](const auto& record) {
    return !(static_cast<double>(record.step) < first);
  };
  std::erase_if(log_.steps, is_undone);
  std::erase_if(log_.validations, is_undone);
  if (log_.steps.empty()) {
    log_.events.clear();
    latest_s_ = 0;
  }
  begin_s_ = latest_s_;
  has_run_ = true;
  is_memory_of_this_stretch_ = are_waits_of_this_stretch_ = false;
  waits_until_ = std::isfinite(first) ? static_cast<int64_t>(first) - 1 : 0;
  log_.end.clear();
  log_.name = text_in(run, "name");
  log_.ranks = number_in(run, "ranks");
  log_.parameters = number_in(run, "parameters");
  log_.tokens_per_step = number_in(run, "tokens_per_step");
  log_.planned_steps = number_in(run, "steps");
  for (const char* name : {"device", "torch", "fairshard"}) {
    log_.facts[name] = text_in(run, name);
  }
  log_.options.clear();
  const auto options = run.find("options");
  if (options != run.end() && options->is_object()) {
    for (const auto& [name, value] : options->items()) {
      log_.options[name] = readable(value);
    }
  }
}

int64_t LogReader::whole_number_in(const Json& record, const char* name) const {
  const auto found = record.find(name);
  TORCH_CHECK_VALUE(found != record.end() && found->is_number_integer(), place(), ": \"", name,
                    "\" must be a whole number");
  return found->get<int64_t>();
}

double LogReader::time_of(const Json& record) {
  const double time = begin_s_ + number_in(record, "time_s");
  latest_s_ = std::max(latest_s_, time);  // stays what it is for NaN
  return time;
}

void LogReader::take_step(const Json& record) {
  StepRecord step;
  step.step = step_of(record);
  step.time_s = time_of(record);
  step.loss = number_in(record, "loss");
  step.tokens_per_s = number_in(record, "tokens_per_s");
  step.sent_bytes = number_in(record, "sent_bytes");
  step.split_s = numbers_in(record, "split_s");
  while (!log_.steps.empty() && log_.steps.back().step >= step.step) {
    log_.steps.pop_back();  // done again
  }
  log_.steps.push_back(std::move(step));
}

void LogReader::take_memory(const Json& record) {
  if (!is_memory_of_this_stretch_) {
    log_.memory.clear();  // there may be other ranks now
    is_memory_of_this_stretch_ = true;
  }
  auto& memory = log_.memory[whole_number_in(record, "rank")];
  for (const auto& [kind, bytes] : numbers_in(record, "bytes")) {
    memory.bytes[kind] = std::max(memory.bytes[kind], bytes);
  }
  memory.peak_bytes = std::fmax(memory.peak_bytes, number_in(record, "peak_bytes"));
}

void LogReader::take_waits(const Json& record) {
  if (!are_waits_of_this_stretch_) {
    log_.waits.clear();  // there may be other ranks now
    are_waits_of_this_stretch_ = true;
  }
  WaitsRecord waits;
  waits.last_step = step_of(record);
  waits.first_step = waits_until_ + 1;
  waits.waited_s = list_in(record, "waited_s");
  const bool is_other_ranks =
      !log_.waits.empty() && log_.waits.back().waited_s.size() != waits.waited_s.size();
  TORCH_CHECK_VALUE(waits.last_step > waits_until_ && !is_other_ranks, place(),
                    ": a line of kind \"waits\" that does not follow the one before it");
  waits_until_ = waits.last_step;
  log_.waits.push_back(std::move(waits));
}

}  // namespace

RunLog read_run_log(const std::string& file) { return LogReader(file).read(); }

}  // namespace fairshard::cli::report

#include "run_log.h"

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include <cerrno>
#include <cstring>

namespace fairshard::cli::training {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

/// A run that was killed may have left half a line.
bool ends_in_a_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file || file.tellg() <= 0) {
    return true;
  }
  file.seekg(-1, std::ios::end);
  return file.get() == '\n';
}

}  // namespace

RunLog::RunLog(const std::string& path, bool is_resumed) : path_(path) {
  const bool needs_end = is_resumed && !ends_in_a_line(path);
  file_.open(path, is_resumed ? std::ios::app : std::ios::trunc);
  TORCH_CHECK(file_.is_open(), "the log cannot be written to ", path, ": ", std::strerror(errno));
  if (needs_end) {
    file_ << '\n';
  }
}

template <typename Line>
void RunLog::write(const Line& line) {
  if (file_.is_open()) {
    // Names of files may be anything.
    file_ << line.dump(-1, ' ', false, Line::error_handler_t::replace) << '\n' << std::flush;
    TORCH_CHECK(file_.good(), "the log cannot be written to ", path_, ": ", std::strerror(errno));
  }
}

void RunLog::run(const RunFacts& facts) {
  write(Json{{"kind", "run"},
             {"format", kFormat},
             {"name", facts.name},
             {"options", Json::parse(facts.options)},
             {"ranks", facts.ranks},
             {"parameters", facts.parameters},
             {"tokens_per_step", facts.tokens_per_step},
             {"device", facts.device},
             {"torch", TORCH_VERSION},
             {"fairshard", FAIRSHARD_VERSION},
             {"first_step", facts.first_step},
             {"steps", facts.steps}});
}

void RunLog::step(const StepRecord& record, int64_t tokens) {
  const TimeSplit& split = record.split;
  Json line{{"kind", "step"},
            {"step", record.step},
            {"time_s", record.time_s},
            {"loss", record.loss},
            {"lr", record.lr},
            {"tokens_per_s", static_cast<double>(tokens) / split.total()},
            {"split_s",
             {{"data", split.data},
              {"compute", split.compute},
              {"link", split.link},
              {"optimizer", split.optimizer},
              {"other", split.other}}},
            {"sent_bytes", record.sent_bytes}};
  if (record.gain) {
    line["gain"] = *record.gain;
  }
  if (record.loss_scale) {
    line["loss_scale"] = *record.loss_scale;
    line["skipped"] = record.is_skipped;
  }
  write(line);
}

void RunLog::memory(int64_t step, int rank, const MemoryUse& use) {
  Json bytes = Json::object();
  const auto add = [&](const char* kind, int64_t value) {
    if (value > 0) {
      bytes[kind] = value;
    }
  };
  add("weights", use.weights);
  add("gradients", use.gradients);
  add("optimizer", use.optimizer);
  add("buckets", use.buckets);
  add("activations", use.activations);
  add("host_weights", use.host_weights);
  add("host_optimizer", use.host_optimizer);
  add("files", use.files);
  write(Json{{"kind", "memory"},
             {"step", step},
             {"rank", rank},
             {"bytes", std::move(bytes)},
             {"peak_bytes", use.peak}});
}

void RunLog::waits(int64_t step, const std::vector<double>& waited_s) {
  write(Json{{"kind", "waits"}, {"step", step}, {"waited_s", waited_s}});
}

void RunLog::validation(int64_t step, double time_s, double loss) {
  write(Json{{"kind", "validation"}, {"step", step}, {"time_s", time_s}, {"loss", loss}});
}

void RunLog::event(int64_t step, double time_s, const std::string& what,
                   const std::string& detail) {
  write(Json{
      {"kind", "event"}, {"step", step}, {"time_s", time_s}, {"what", what}, {"detail", detail}});
}

void RunLog::end(int64_t step, double time_s, const std::string& reason) {
  write(Json{{"kind", "end"}, {"step", step}, {"time_s", time_s}, {"reason", reason}});
}

}  // namespace fairshard::cli::training

#include "timeline.h"

#include <fairshard/comm/collectives.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace fairshard::cli::training {
namespace {

using Json = nlohmann::ordered_json;

/// The texts of all ranks, on all ranks.
std::vector<std::string> gather_texts(const comm::Group& group, const std::string& own) {
  const auto length = at::scalar_tensor(static_cast<int64_t>(own.size()), at::kLong);
  const auto longest = length.clone();
  comm::all_reduce(group, longest, comm::ReduceOp::kMax, "length of timelines").wait();
  const auto room = longest.item<int64_t>() + 1;  // ended by a zero
  const at::Tensor bytes = at::zeros({room}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
  const at::Tensor all = at::empty({room * group.size()}, at::kByte);
  comm::all_gather(group, all, bytes, "timelines").wait();
  std::vector<std::string> texts;
  for (int rank = 0; rank < group.size(); ++rank) {
    texts.emplace_back(reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>()) + rank * room);
  }
  return texts;
}

}  // namespace

Timeline::Timeline(const comm::Group& group, bool is_on) : is_on_(is_on) {
  if (is_on) {
    comm::barrier(group, "start of the timeline");
  }
  zero_ = Clock::now();
}

void Timeline::add(const std::string& track, const std::string& name, Clock::time_point start,
                   Clock::time_point end, const Figures& figures) {
  if (is_on_) {
    const auto micro = [](Clock::duration time) {
      return std::chrono::duration<double, std::micro>(time).count();
    };
    events_.push_back({track, name, micro(start - zero_), micro(end - start), figures});
  }
}

void Timeline::add(const std::string& track, const std::string& name, Clock::time_point zero,
                   double start_s, double end_s) {
  const auto at = [&](double seconds) {
    return zero +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  };
  add(track, name, at(start_s), at(end_s));
}

/// Events of a rank, in the trace event format: a process is a rank, a thread is a track.
std::string Timeline::to_json(int rank) const {
  Json events = Json::array();
  events.push_back({{"ph", "M"},
                    {"name", "process_name"},
                    {"pid", rank},
                    {"args", {{"name", "rank " + std::to_string(rank)}}}});
  std::map<std::string, int> tracks;
  for (const Event& event : events_) {
    const auto [place, is_new] = tracks.emplace(event.track, static_cast<int>(tracks.size()));
    if (is_new) {
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", rank},
                        {"tid", place->second},
                        {"args", {{"name", event.track}}}});
    }
    events.push_back({{"ph", "X"},
                      {"name", event.name},
                      {"cat", event.track},
                      {"pid", rank},
                      {"tid", place->second},
                      {"ts", event.start_us},
                      {"dur", event.length_us},
                      {"args", event.figures}});
  }
  return events.dump();
}

void Timeline::write(const comm::Group& group, const std::string& path) const {
  const auto texts = gather_texts(group, to_json(group.rank()));
  if (group.rank() != 0) {
    return;
  }
  Json all = Json::array();
  for (const std::string& text : texts) {
    for (auto& event : Json::parse(text)) {
      all.push_back(std::move(event));
    }
  }
  std::ofstream file(path);
  file << Json{{"traceEvents", std::move(all)}, {"displayTimeUnit", "ms"}}.dump() << "\n";
  file.flush();
  TORCH_CHECK(file.good(), "the timeline cannot be written to ", path, ": ", std::strerror(errno));
}

}  // namespace fairshard::cli::training

#include "probe_wire.h"

#include <algorithm>

namespace fairshard::comm {

void RateMeter::add(uint64_t bytes, ProbeClock::time_point now) {
  constexpr auto kApart = std::chrono::microseconds(200);
  bytes_ += bytes;
  const Sample sample{now, bytes_};
  // The last one is replaced until it is far enough from the one before it.
  if (samples_.size() >= 2 && samples_.back().at - samples_[samples_.size() - 2].at < kApart) {
    samples_.back() = sample;
  } else {
    samples_.push_back(sample);
  }
}

double RateMeter::bytes_per_s() const {
  if (samples_.size() < 2) {
    return 0;
  }
  const Sample& last = samples_.back();
  const auto half = samples_.front().at + (last.at - samples_.front().at) / 2;
  const auto from = std::prev(std::upper_bound(
      samples_.begin(), samples_.end(), half,
      [](ProbeClock::time_point time, const Sample& sample) { return time < sample.at; }));
  const double seconds = std::chrono::duration<double>(last.at - from->at).count();
  return seconds > 0 ? static_cast<double>(last.bytes - from->bytes) / seconds : 0;
}

}  // namespace fairshard::comm

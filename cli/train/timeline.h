#pragma once
// What happened when on which rank, in a file that Perfetto and chrome://tracing open.

#include <fairshard/comm/group.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace fairshard::cli::training {

/// Collects spans of one rank. Not thread-safe.
class Timeline {
 public:
  using Clock = std::chrono::steady_clock;
  using Figures = std::map<std::string, double>;

  /// Ranks meet, so that all have one time from which spans count. Collective if it is on.
  Timeline(const comm::Group& group, bool is_on);

  bool is_on() const { return is_on_; }
  void stop() { is_on_ = false; }

  /// A line of its own for each track. Does nothing while it is off.
  void add(const std::string& track, const std::string& name, Clock::time_point start,
           Clock::time_point end, const Figures& figures = {});
  /// The same in seconds since `zero`.
  void add(const std::string& track, const std::string& name, Clock::time_point zero,
           double start_s, double end_s);

  /// Rank 0 writes the spans of all. Collective; blocks.
  void write(const comm::Group& group, const std::string& path) const;

 private:
  struct Event {
    std::string track;
    std::string name;
    double start_us;
    double length_us;
    Figures figures;
  };

  std::string to_json(int rank) const;

  bool is_on_;
  Clock::time_point zero_;
  std::vector<Event> events_;
};

}  // namespace fairshard::cli::training

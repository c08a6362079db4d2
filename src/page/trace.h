#pragma once
// Times of copies and of work, of the device and of the CPU, on one axis.

#include "copy_stream.h"
#include <fairshard/page/report.h>

#include <mutex>
#include <string>
#include <vector>

namespace fairshard::page {

class Trace {
 public:
  Trace(const c10::Stream& stream, bool is_on) : is_on_(is_on) {
    if (is_on) {
      start_ = Event(stream, true);
      start_.wait();
      start_time_ = Clock::now();
    }
  }

  /// Of the device.
  void add(const char* track, size_t slice, const Event& start, const Event& end) {
    if (is_on_) {
      const std::lock_guard lock(mutex_);
      open_.push_back({track, slice, start, end});
    }
  }
  /// Of the CPU. From any thread.
  void add(const std::string& track, const std::string& name, Clock::time_point start,
           Clock::time_point end) {
    if (is_on_) {
      const std::lock_guard lock(mutex_);
      done_.push_back({track, name, seconds(start), seconds(end)});
    }
  }

  /// All until now, which it waits for.
  std::vector<Span> take() {
    const std::lock_guard lock(mutex_);
    for (const auto& [track, slice, start, end] : open_) {
      end.wait();
      done_.push_back({track, "slice " + std::to_string(slice), start.seconds_since(start_),
                       end.seconds_since(start_)});
    }
    open_.clear();
    return std::exchange(done_, {});
  }

 private:
  struct Open {
    const char* track;
    size_t slice;
    Event start;
    Event end;
  };

  double seconds(Clock::time_point time) const {
    return std::chrono::duration<double>(time - start_time_).count();
  }

  bool is_on_;
  Event start_;
  Clock::time_point start_time_;
  std::mutex mutex_;
  std::vector<Open> open_;
  std::vector<Span> done_;
};

}  // namespace fairshard::page

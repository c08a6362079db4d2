#pragma once
// What is known of why ranks wait, for errors of those who have waited too long.

#include <mutex>
#include <string>

namespace fairshard::comm {

/// Written by a WaitWatch, read by whoever words an error.
class Verdict {
 public:
  void set(const std::string& text) {
    const std::lock_guard lock(mutex_);
    text_ = text;
  }
  /// To be added to a message; empty if nothing is known.
  std::string addition() const {
    const std::lock_guard lock(mutex_);
    return text_.empty() ? "" : " What the ranks said meanwhile: " + text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace fairshard::comm

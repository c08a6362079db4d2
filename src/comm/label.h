#pragma once
// What a collective is for, told to backends beside c10d's interface, which has no place for it.

#include <string>

namespace fairshard::comm {

/// While it lives, collectives that this thread starts have the label. It stands in error messages,
/// and ranks that give different ones get an error.
class LabelScope {
 public:
  /// `label` must outlive it.
  explicit LabelScope(const std::string& label) : outer_(innermost()) { innermost() = &label; }
  ~LabelScope() { innermost() = outer_; }
  LabelScope(const LabelScope&) = delete;
  LabelScope& operator=(const LabelScope&) = delete;

  static std::string current() { return innermost() ? *innermost() : std::string(); }

 private:
  /// This thread's.
  static const std::string*& innermost() {
    thread_local const std::string* label = nullptr;
    return label;
  }

  const std::string* outer_;
};

}  // namespace fairshard::comm

#pragma once
// SIGTERM as a wish that is looked at between steps.

#include <csignal>

namespace fairshard::cli::training {

/// While it lives, a SIGTERM to this process, or to a process forked since, waits to be asked for.
/// To be made before the process has other threads: those started later leave the signal alone,
/// too.
class Termination {
 public:
  Termination();
  ~Termination();
  Termination(const Termination&) = delete;
  Termination& operator=(const Termination&) = delete;

  /// Whether a SIGTERM has come to this process.
  bool is_asked_for();

 private:
  sigset_t before_{};
  int event_ = -1;
  bool is_asked_for_ = false;
};

}  // namespace fairshard::cli::training

#pragma once
// SIGTERM and SIGINT (Ctrl-C) as a wish: at once while nothing is lost by it, else between steps.

#include <csignal>
#include <string>

namespace fairshard::cli::training {

/// "SIGTERM" or "SIGINT".
const char* name_of_signal(int signal);

/// While it lives, these signals do what they should for this process and those forked since.
/// Before the first step they end it at once. Then they wait to be asked for, so that the step is
/// finished and saved; one that comes a second or more after the first ends it at once again, for a
/// rank that hangs. One at a time.
class Termination {
 public:
  Termination();
  ~Termination();
  Termination(const Termination&) = delete;
  Termination& operator=(const Termination&) = delete;

  /// A file that is removed, with its folder, if this process ends at once. It may be gone already.
  void remove_at_end(const std::string& file);
  /// Steps begin. `speaks` has this process say that it has heard.
  void begin_steps(bool speaks);
  /// Whether any process has begun steps.
  bool have_steps_begun() const;
  /// The signal that has come to this process since, or 0.
  int signal() const;

 private:
  struct sigaction term_ {};
  struct sigaction interrupt_ {};
};

}  // namespace fairshard::cli::training

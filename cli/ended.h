#pragma once
// How a command ends when it is neither done nor failed as others do.

#include <stdexcept>
#include <string>

namespace fairshard::cli {

/// Ends the program with a code of its own, and with a message if that is not empty.
class Ended : public std::runtime_error {
 public:
  Ended(int exit_code, const std::string& message)
      : std::runtime_error(message), exit_code_(exit_code) {}

  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// With the code that shells give to a signal.
class EndedBySignal : public Ended {
 public:
  EndedBySignal(int signal, const std::string& message) : Ended(128 + signal, message) {}
};

}  // namespace fairshard::cli

#pragma once
// A command that was ended by a signal: neither done nor failed.

#include <stdexcept>
#include <string>

namespace fairshard::cli {

/// Ends the program with the code that shells give to a signal.
class EndedBySignal : public std::runtime_error {
 public:
  EndedBySignal(int signal, const std::string& message)
      : std::runtime_error(message), signal_(signal) {}

  int exit_code() const { return 128 + signal_; }

 private:
  int signal_;
};

}  // namespace fairshard::cli

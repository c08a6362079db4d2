#pragma once
// The outermost function of a program.

#include <functional>

namespace fairshard::comm {

/// Runs `fn`, and returns the exit status for main(): 0, or 1 after an exception, whose reason goes
/// to the standard error output as "program: reason", without the backtrace that torch's errors
/// have; a rank of launch() that a signal has ended gives 128 and the signal's number, as in a
/// shell.
///
///   int main() { return fairshard::comm::run_main([] { ... }); }
int run_main(const std::function<void()>& fn);

}  // namespace fairshard::comm

#include <fairshard/comm/launch.h>
#include <fairshard/comm/reason.h>
#include <fairshard/comm/run_main.h>

#include <cerrno>
#include <exception>
#include <iostream>
#include <string>

namespace fairshard::comm {
namespace {

constexpr int kFailed = 1;
constexpr int kBySignal = 128;

void report(const std::string& reason) {
  std::cout.flush();
  std::cerr << program_invocation_short_name << ": " << reason << std::endl;
}

}  // namespace

int run_main(const std::function<void()>& fn) {
  try {
    fn();
    return 0;
  } catch (const LaunchError& error) {
    report(reason_of(error));
    return error.signal() == 0 ? kFailed : kBySignal + error.signal();
  } catch (const std::exception& error) {
    report(reason_of(error));
  } catch (...) {
    report("it threw something that is no std::exception");
  }
  return kFailed;
}

}  // namespace fairshard::comm

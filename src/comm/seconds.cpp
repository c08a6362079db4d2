#include <fairshard/comm/seconds.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <cstdint>

namespace fairshard::comm {
namespace {

std::chrono::milliseconds rounded_up(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(seconds * 1000)));
}

}  // namespace

std::chrono::milliseconds to_timeout(double seconds, const char* option) {
  TORCH_CHECK_VALUE(seconds > 0 && seconds <= kMostSeconds, option, " is ", seconds,
                    ", but must be above 0 and at most ", kMostSeconds, " seconds");
  return rounded_up(seconds);
}

std::chrono::milliseconds to_pause(double seconds, const char* option) {
  TORCH_CHECK_VALUE(seconds >= 0 && seconds <= kMostSeconds, option, " is ", seconds,
                    ", but must be from 0 to ", kMostSeconds, " seconds");
  return rounded_up(seconds);
}

}  // namespace fairshard::comm

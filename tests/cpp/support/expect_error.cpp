#include "support/expect_error.h"

#include <fairshard/comm/reason.h>

#include <gtest/gtest.h>

namespace fairshard::test {

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const std::exception& error) {
    return comm::reason_of(error);
  }
  return "";
}

void expect_error(const std::function<void()>& fn, const std::vector<std::string>& words) {
  const std::string message = error_of(fn);
  EXPECT_NE(message, "") << "nothing was thrown";
  for (const auto& word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
  }
}

}  // namespace fairshard::test

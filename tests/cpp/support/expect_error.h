#pragma once
// Checks that something throws, and that the message names what a user needs to know.

#include <functional>
#include <string>
#include <vector>

namespace fairshard::test {

/// The message of what `fn` throws (without LibTorch's stack trace), or "" if it does not throw.
std::string error_of(const std::function<void()>& fn);

/// Fails the test unless `fn` throws with all of `words` in its message.
void expect_error(const std::function<void()>& fn, const std::vector<std::string>& words);

}  // namespace fairshard::test

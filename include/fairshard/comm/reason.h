#pragma once
// What an exception says to a person.

#include <exception>
#include <string>

namespace fairshard::comm {

/// The message, without the backtrace that torch's errors add to it.
std::string reason_of(const std::exception& error);

}  // namespace fairshard::comm

#include <fairshard/comm/reason.h>

#include <c10/util/Exception.h>

namespace fairshard::comm {

std::string reason_of(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error ? torch_error->what_without_backtrace() : error.what();
}

}  // namespace fairshard::comm

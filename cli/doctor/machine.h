#pragma once
// What a rank can find out about its machine by itself.

#include "measurements.h"
#include <fairshard/comm/environment.h>

#include <string>

namespace fairshard::cli::doctor {

/// Whatever the system does not answer within `limit_s` is a fault of what was asked. `save` is
/// where checkpoints go, or empty. Local.
Machine examine_machine(const comm::Environment& environment, const std::string& save,
                        double limit_s);

}  // namespace fairshard::cli::doctor

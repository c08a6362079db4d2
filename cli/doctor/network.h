#pragma once
// The interfaces and names of this machine.

#include "measurements.h"
#include <fairshard/comm/environment.h>

namespace fairshard::cli::doctor {

Network examine_network(const comm::Environment& environment, double limit_s);

}  // namespace fairshard::cli::doctor

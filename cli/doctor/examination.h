#pragma once
// One rank's part in it: what it finds, and how rank 0 comes to know.

#include "measurements.h"
#include <fairshard/comm/environment.h>
#include <fairshard/comm/probe.h>

#include <functional>
#include <string>

namespace fairshard::cli::doctor {

struct DoctorOptions {
  int ranks = 2;
  std::string save;
  double seconds = 10;
  double megabytes = 32;
  double answer_s = 5;
  double timeout_s = 60;
  bool is_json = false;

  comm::ProbeOptions probe() const;
};

/// Examines this rank's machine and its links. On rank 0 `judge` gets what all have found, and says
/// with which status all of them are to end; this is returned on every rank.
///
/// Collective. Blocks; a rank that ends or hangs meanwhile is missing in the measurements.
int examine(const c10::intrusive_ptr<c10d::Store>& store, const comm::Environment& environment,
            const DoctorOptions& options, const std::function<int(const Measurements&)>& judge);

}  // namespace fairshard::cli::doctor

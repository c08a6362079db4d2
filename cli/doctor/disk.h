#pragma once
// The disk that checkpoints go to.

#include "measurements.h"

#include <string>

namespace fairshard::cli::doctor {

/// How much is free there and, if `writes`, how quickly a file of at most 64 MiB comes to the disk.
/// The file has no name, so nothing of it stays, however this process ends. A folder that is not
/// there yet is not made: the next one above it stands for it.
Disk examine_disk(const std::string& folder, bool writes, double limit_s);

}  // namespace fairshard::cli::doctor

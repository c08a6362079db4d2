#pragma once
// The GPUs that this process can use, and which of them read each other's memory.

#include <string>
#include <vector>

namespace fairshard::page {

/// A GPU that this process sees.
struct Gpu {
  std::string name;        ///< as the driver says it, or "GPU"
  std::string bus_id;      ///< where it is in the machine; empty if CUDA does not say
  std::vector<int> peers;  ///< the others, by number, whose memory it reaches without the host
};

/// Asks torch and CUDA's runtime, as far as that is loaded; empty without a driver. No memory of a
/// GPU is used. Local.
std::vector<Gpu> visible_gpus();

}  // namespace fairshard::page

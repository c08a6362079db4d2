#include "cuda_runtime.h"
#include <fairshard/page/gpus.h>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <cctype>
#include <fstream>

namespace fairshard::page {
namespace {

/// The driver lists them by bus ids of small letters.
std::string driver_s_name(std::string bus_id) {
  std::ranges::transform(bus_id, bus_id.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file("/proc/driver/nvidia/gpus/" + bus_id + "/information");
  std::string line;
  while (std::getline(file, line)) {
    const auto value = line.find_first_not_of(" \t", line.find(':') + 1);
    if (line.rfind("Model:", 0) == 0 && value != std::string::npos) {
      return line.substr(value);
    }
  }
  return "GPU";
}

}  // namespace

std::vector<Gpu> visible_gpus() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) {
    return {};
  }
  const c10::DeviceIndex devices =
      c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA)->deviceCount();
  const int count = static_cast<unsigned char>(devices);
  std::vector<Gpu> gpus(count);
  for (int i = 0; i < count; ++i) {
    gpus[i].bus_id = bus_id_of_device(i);
    gpus[i].name = driver_s_name(gpus[i].bus_id);
    for (int peer = 0; peer < count; ++peer) {
      if (peer != i && can_access_peer(i, peer)) {
        gpus[i].peers.push_back(peer);
      }
    }
  }
  return gpus;
}

}  // namespace fairshard::page

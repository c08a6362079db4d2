#pragma once
// The few calls of CUDA's runtime that c10 has no word for. They are looked up in the library that
// torch itself has loaded, so neither headers nor a toolkit are needed, and nothing where there is
// no CUDA.

#include <cstdint>
#include <string>

namespace fairshard::page {

/// Locks memory for copies by a GPU. Returns what went wrong, or "".
std::string register_host_memory(void* data, int64_t bytes);

void unregister_host_memory(void* data);

/// Whether a device reads and writes the memory of another one by itself; false without CUDA.
bool can_access_peer(int device, int peer);

/// Where a device is in the machine, for instance "0000:1A:00.0"; "" if CUDA does not say.
std::string bus_id_of_device(int device);

}  // namespace fairshard::page

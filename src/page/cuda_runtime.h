#pragma once
// The two calls of CUDA's runtime that c10 has no word for. They are looked up in the library that
// torch itself has loaded, so neither headers nor a toolkit are needed, and nothing where there is
// no CUDA.

#include <cstdint>
#include <string>

namespace fairshard::page {

/// Locks memory for copies by a GPU. Returns what went wrong, or "".
std::string register_host_memory(void* data, int64_t bytes);

void unregister_host_memory(void* data);

}  // namespace fairshard::page

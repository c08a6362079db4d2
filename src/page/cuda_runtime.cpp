#include "cuda_runtime.h"

#include <dlfcn.h>

#include <array>
#include <string>

namespace fairshard::page {
namespace {

constexpr unsigned kPortable = 1;  // cudaHostRegisterPortable: for all devices

template <typename Function>
Function find_in_cuda(const char* name) {
  void* symbol = dlsym(RTLD_DEFAULT, name);
  for (const char* library : {"libcudart.so.13", "libcudart.so.12"}) {
    if (void* handle = symbol ? nullptr : dlopen(library, RTLD_NOLOAD | RTLD_LAZY)) {
      symbol = dlsym(handle, name);
      dlclose(handle);  // torch keeps it
    }
  }
  return reinterpret_cast<Function>(symbol);
}

}  // namespace

std::string register_host_memory(void* data, int64_t bytes) {
  const auto lock = find_in_cuda<int (*)(void*, size_t, unsigned)>("cudaHostRegister");
  if (!lock) {
    return "CUDA's runtime has not been loaded";
  }
  const int error = lock(data, static_cast<size_t>(bytes), kPortable);
  if (error == 0) {
    return "";
  }
  if (const auto clear = find_in_cuda<int (*)()>("cudaGetLastError")) {
    clear();  // or the next kernel would report it
  }
  const auto describe = find_in_cuda<const char* (*)(int)>("cudaGetErrorString");
  return describe ? describe(error) : "CUDA error " + std::to_string(error);
}

bool can_access_peer(int device, int peer) {
  const auto ask = find_in_cuda<int (*)(int*, int, int)>("cudaDeviceCanAccessPeer");
  int can = 0;
  return ask && ask(&can, device, peer) == 0 && can != 0;
}

std::string bus_id_of_device(int device) {
  const auto ask = find_in_cuda<int (*)(char*, int, int)>("cudaDeviceGetPCIBusId");
  std::array<char, 32> text{};
  const bool is_known = ask && ask(text.data(), static_cast<int>(text.size()), device) == 0;
  return is_known ? text.data() : "";
}

void unregister_host_memory(void* data) {
  if (const auto unlock = find_in_cuda<int (*)(void*)>("cudaHostUnregister")) {
    unlock(data);
  }
}

}  // namespace fairshard::page

#include "cuda_runtime.h"
#include <fairshard/page/host_memory.h>

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

namespace fairshard::page {
namespace {

constexpr auto kRemedies =
    "param_dtype (bfloat16) halves what is pinned; host_budget_bytes with spill_dir puts slices "
    "into files";

std::string in_gib(int64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

/// A file without a name, of the size asked for.
int open_unnamed(const std::string& folder, int64_t bytes) {
  std::string name = folder + "/fairshard-spill-XXXXXX";
  const int file = mkstemp(name.data());
  TORCH_CHECK(file >= 0, "cannot make a file in spill_dir '", folder, "': ", std::strerror(errno));
  unlink(name.c_str());
  if (const int error = posix_fallocate(file, 0, bytes)) {
    close(file);
    TORCH_CHECK(false, "spill_dir '", folder, "' has no room for ", in_gib(bytes), " (", bytes,
                " bytes): ", std::strerror(error));
  }
  return file;
}

int64_t number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = -1;
  return file >> value ? value : -1;
}

}  // namespace

int64_t available_host_bytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") {
      available = kib * 1024;
      break;
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  const int64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const int64_t used = number_in("/sys/fs/cgroup/memory.current");
  return limit < 0 || used < 0 ? available
                               : std::min(available, std::max<int64_t>(limit - used, 0));
}

std::shared_ptr<HostMemory> HostMemory::in_ram(int64_t bytes, bool pin) {
  const int64_t available = available_host_bytes();
  void* data = MAP_FAILED;
  if (bytes <= available) {
    data = mmap(nullptr, std::max<int64_t>(bytes, 1), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  TORCH_CHECK(data != MAP_FAILED, "offloading asked for ", in_gib(bytes), " (", bytes,
              " bytes) of host memory, and ", in_gib(available), " are available: ", kRemedies);
  madvise(data, bytes, MADV_HUGEPAGE);
  std::shared_ptr<HostMemory> memory(new HostMemory(static_cast<char*>(data), bytes));
  if (pin) {
    memory->pin();
  }
  return memory;
}

std::shared_ptr<HostMemory> HostMemory::in_file(int64_t bytes, const std::string& folder) {
  const int file = open_unnamed(folder, std::max<int64_t>(bytes, 1));
  void* const data =
      mmap(nullptr, std::max<int64_t>(bytes, 1), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  const int error = errno;
  close(file);
  TORCH_CHECK(data != MAP_FAILED, "cannot map ", in_gib(bytes), " of a file in spill_dir '", folder,
              "': ", std::strerror(error));
  return std::shared_ptr<HostMemory>(new HostMemory(static_cast<char*>(data), bytes));
}

void HostMemory::pin() {
  if (size_ == 0) {
    return;
  }
  const std::string error = register_host_memory(data_, size_);
  TORCH_CHECK(error.empty(), "offloading asked for ", in_gib(size_), " (", size_,
              " bytes) of page-locked host memory: ", error, ". ", in_gib(available_host_bytes()),
              " are available, `ulimit -l` may allow less: ", kRemedies);
  is_pinned_ = true;
}

HostMemory::~HostMemory() {
  if (is_pinned_) {
    unregister_host_memory(data_);
  }
  munmap(data_, std::max<int64_t>(size_, 1));
}

at::Tensor HostMemory::tensor(int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides,
                              at::ScalarType dtype) {
  return at::from_blob(
      data_ + offset, sizes, strides, [self = shared_from_this()](void*) {}, at::dtype(dtype),
      at::Device(at::kCPU));
}

at::Tensor HostMemory::bytes(int64_t offset, int64_t count) {
  return tensor(offset, {count}, {1}, at::kByte);
}

}  // namespace fairshard::page

#include "counted_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <cstring>

namespace fairshard::cli::training {
namespace {

/// In front of every block lies its size. As long as torch's own alignment, which it so keeps.
constexpr size_t kHeaderBytes = 64;

void free_counted(void* data);

/// Passes everything on to torch's own allocator, and counts.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator& inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    void* const data = bytes == 0 ? nullptr : take(bytes);
    return {data, data, &free_counted, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  void give_back(void* data) {
    void* const block = static_cast<char*>(data) - kHeaderBytes;
    size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof(bytes));
    now_ -= static_cast<int64_t>(bytes);
    inner_.raw_deallocate(block);
  }

  void reset_peak() { peak_ = now_.load(); }
  int64_t peak() const { return peak_; }

 private:
  void* take(size_t bytes) {
    void* const block = inner_.raw_allocate(bytes + kHeaderBytes);
    std::memcpy(block, &bytes, sizeof(bytes));
    const int64_t now = now_ += static_cast<int64_t>(bytes);
    int64_t peak = peak_;
    while (peak < now && !peak_.compare_exchange_weak(peak, now)) {
    }
    return static_cast<char*>(block) + kHeaderBytes;
  }

  c10::Allocator& inner_;
  std::atomic<int64_t> now_ = 0;
  std::atomic<int64_t> peak_ = 0;
};

CountingAllocator& host_memory() {
  // Never destroyed: tensors of other static objects may be freed later.
  static auto* const allocator = new CountingAllocator(*c10::GetDefaultCPUAllocator());
  return *allocator;
}

void free_counted(void* data) {
  if (data != nullptr) {
    host_memory().give_back(data);
  }
}

}  // namespace

void count_host_memory() {
  constexpr uint8_t kAboveTorchs = 1;
  c10::SetCPUAllocator(&host_memory(), kAboveTorchs);
}

void CountedMemory::reset_peak() const {
  if (device_.is_cpu()) {
    host_memory().reset_peak();
  } else {
    c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
  }
}

int64_t CountedMemory::peak_bytes() const {
  if (device_.is_cpu()) {
    return host_memory().peak();
  }
  constexpr size_t kAllSizes = 0;
  const auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
  return stats.allocated_bytes[kAllSizes].peak;
}

}  // namespace fairshard::cli::training

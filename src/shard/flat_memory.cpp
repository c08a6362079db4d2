#include "flat_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

namespace fairshard::shard {
namespace {

/// A block of torch's own allocator.
struct Block {
  c10::DataPtr memory;
  size_t bytes;

  ~Block() {
    static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t before = (page - reinterpret_cast<uintptr_t>(memory.get()) % page) % page;
    const size_t whole_pages = bytes > before ? (bytes - before) / page * page : 0;
    if (whole_pages > 0) {
      // Whether or not it succeeds, the block is freed as any other.
      madvise(static_cast<char*>(memory.get()) + before, whole_pages, MADV_DONTNEED);
    }
  }
};

/// Takes memory from torch's allocator, and gives its pages back to the system first.
class ReturningAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* const block = new Block{c10::GetAllocator(c10::kCPU)->allocate(bytes), bytes};
    return {block->memory.get(), block, [](void* context) { delete static_cast<Block*>(context); },
            c10::Device(c10::kCPU)};
  }

  void copy_data(void* target, const void* source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

ReturningAllocator* returning_allocator() {
  // Never destroyed: tensors of other static objects may be freed later.
  static auto* const allocator = new ReturningAllocator();
  return allocator;
}

}  // namespace

void return_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

at::Tensor empty_flat(int64_t numel, const at::TensorOptions& options) {
  if (!options.device().is_cpu()) {
    return at::empty({numel}, options);
  }
  auto* const allocator = returning_allocator();
  const auto bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes),
                             allocator, /*resizable=*/false);
  return at::empty({0}, options).set_(storage, 0, {numel}, {1});
}

}  // namespace fairshard::shard

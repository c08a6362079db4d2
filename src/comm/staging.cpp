#include "staging.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace fairshard::comm {
namespace {

/// Smaller blocks cost few page faults, and would take the place of large ones.
constexpr int64_t kWorthKeeping = 256 << 10;

}  // namespace

at::Tensor Staging::take(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes >= kWorthKeeping) {
    const auto found = std::find_if(free_.begin(), free_.end(), [&](const at::Tensor& block) {
      return block.numel() >= bytes;
    });
    if (found != free_.end()) {
      at::Tensor block = std::move(*found);
      free_.erase(found);
      return block;
    }
  }
  return at::empty({bytes}, at::kByte);
}

void Staging::give_back(const at::Tensor& block) {
  // Two collectives are often under way together; of a burst of them, the rest is let go.
  constexpr size_t kMost = 2;
  const std::lock_guard lock(mutex_);
  if (block.numel() >= kWorthKeeping && free_.size() < kMost) {
    free_.push_back(block);
  }
}

}  // namespace fairshard::comm

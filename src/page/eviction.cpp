#include "eviction.h"

namespace fairshard::page {
namespace {

/// How many slices lie between the use of `wanted` and the next use of `held`.
int64_t slices_until(const PassState& pass, int64_t held, int64_t wanted) {
  const int64_t ahead = pass.is_backward ? wanted - held : held - wanted;
  if (ahead > 0) {
    return ahead;
  }
  const int64_t last = pass.slices - 1;
  return pass.comes_back ? (last - wanted) + (last - held) + 1 : 3 * pass.slices - ahead;
}

}  // namespace

int64_t choose_slot(const std::vector<int64_t>& held, const PassState& pass, int64_t wanted,
                    bool must) {
  const int64_t step = pass.is_backward ? -1 : 1;
  const int64_t before_all = pass.is_backward ? pass.slices : -1;
  const int64_t start = pass.current >= 0 ? pass.current : before_all;
  int64_t best = -1;
  int64_t best_distance = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    const int64_t slice = held[i];
    if (slice < 0) {
      return static_cast<int64_t>(i);
    }
    const bool is_ahead = (slice - start) * step > 0 && (wanted - slice) * step > 0;
    if (slice == pass.current || (is_ahead && !must)) {
      continue;
    }
    const int64_t distance = slices_until(pass, slice, wanted);
    if (distance > best_distance) {
      best = static_cast<int64_t>(i);
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace fairshard::page

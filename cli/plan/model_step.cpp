#include "model_step.h"

namespace fairshard::cli::planning {

void ModelStep::run(GradientSink& sink) {
  for (int64_t first = 0; first < blocks();) {
    const int64_t last = end_of_recomputation(first);
    const int64_t before = ledger_.now();
    for (int64_t block = first; block <= last; ++block) {
      forward(block);
    }
    if (recomputed_with_[first] >= 0) {  // only the result is kept
      ledger_.give(ledger_.now() - before - output_bytes(last));
    }
    first = last + 1;
  }
  forward_loss();
  backward_loss();
  for (int64_t last = blocks() - 1; last >= 0;) {
    int64_t first = last;
    while (first > 0 && end_of_recomputation(first - 1) >= last) {
      --first;
    }
    if (recomputed_with_[first] >= 0) {
      backward_again(first, last, sink);
    } else {
      backward(last, sink);
    }
    last = first - 1;
  }
  sink.finish();
}

/// The last of the blocks that are computed again together with this one.
int64_t ModelStep::end_of_recomputation(int64_t block) const {
  const auto& with = recomputed_with_;
  auto last = static_cast<size_t>(block);
  while (with[last] >= 0 && last + 1 < with.size() && with[last + 1] == with[last]) {
    ++last;
  }
  return static_cast<int64_t>(last);
}

/// Forward once more; from then on as if nothing had been forgotten. The result is not needed
/// again.
void ModelStep::backward_again(int64_t first, int64_t last, GradientSink& sink) {
  for (int64_t block = first; block <= last; ++block) {
    forward(block);
  }
  ledger_.give(output_bytes(last));
  for (int64_t block = last; block >= first; --block) {
    backward(block, sink);
  }
}

}  // namespace fairshard::cli::planning

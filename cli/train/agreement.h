#pragma once
// The one small reduction that ends a step: the mean loss, and whether a rank wants to stop.

#include <fairshard/comm/group.h>
#include <fairshard/comm/work.h>

#include <ATen/core/Tensor.h>

namespace fairshard::cli::training {

/// It is under way while the next step computes, so that nobody waits for it: what a step's ranks
/// agree on is known one step later.
class Agreement {
 public:
  struct Result {
    double mean_loss = 0;
    /// The signal that has asked a rank to end, or 0.
    int signal = 0;
  };

  /// Starts it. Collective; does not block.
  Agreement(const comm::Group& group, const at::Tensor& loss, int signal);

  /// The same on all ranks. Blocks.
  Result wait();

 private:
  int ranks_;
  at::Tensor values_;
  comm::Work work_;
};

}  // namespace fairshard::cli::training

#pragma once
// Plain data parallelism: every rank has all gradients, and they are averaged in one flat buffer.

#include <fairshard/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace gpt {

/// Makes the parameters those of rank 0. Collective; blocks.
void broadcast_parameters(const fairshard::comm::Group& group,
                          const std::vector<at::Tensor>& parameters);

/// Owns the gradients: while it lives, do not set the parameters' .grad to anything else (no
/// zero_grad() with set_to_none). The parameters have one dtype and one device.
class ReplicatedGradients {
 public:
  ReplicatedGradients(fairshard::comm::Group group, const std::vector<at::Tensor>& parameters);

  void zero_() { flat_.zero_(); }

  /// Every rank's gradients become their mean. Collective; blocks.
  void average_();

  uint64_t bytes() const { return flat_.nbytes(); }

 private:
  fairshard::comm::Group group_;
  at::Tensor flat_;
};

}  // namespace gpt

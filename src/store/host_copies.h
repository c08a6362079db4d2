#pragma once
// A copy of a state in host memory, to be written while the original changes.

#include <fairshard/store/state.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace fairshard::store {

class HostCopies {
 public:
  /// Puts copies in place of the state's tensors. Buffers of the last time are used again, so that
  /// must be over. Returns when the copies are complete.
  void take(State& state);

 private:
  std::map<std::string, at::Tensor> buffers_;
};

}  // namespace fairshard::store

#pragma once
// The states of the default random generators, to be brought back later.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace fairshard {

/// Of the CPU and of every GPU that this process uses.
class RngState {
 public:
  /// The state now.
  RngState();
  /// Brings it back.
  void apply() const;
  const std::vector<std::pair<at::Generator, at::Tensor>>& states() const { return states_; }

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

/// Brings a state back for as long as it lives, and then the one that was there before.
class RngGuard {
 public:
  explicit RngGuard(const RngState& state) { state.apply(); }
  ~RngGuard() { before_.apply(); }
  RngGuard(const RngGuard&) = delete;
  RngGuard& operator=(const RngGuard&) = delete;

 private:
  RngState before_;
};

}  // namespace fairshard

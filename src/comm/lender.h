#pragma once
// Flat host memory for the tensors of a collective.

#include "direct_work.h"

#include <ATen/core/Tensor.h>

#include <vector>

namespace fairshard::comm {

/// Lends a tensor's own memory where it is on the CPU and contiguous, and else a copy.
class Lender {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// For what is sent.
  static at::Tensor source(const at::Tensor& tensor);
  static Tensors sources(const Tensors& tensors);
  /// For what is received; the tensor gets it in the end.
  at::Tensor target(const at::Tensor& tensor);
  Tensors targets(const Tensors& tensors);
  /// For both.
  at::Tensor both(const at::Tensor& tensor);

  /// What is still to be copied when the collective has ended.
  const DirectWork::Copies& copies() const { return copies_; }

 private:
  at::Tensor copied(const at::Tensor& tensor, at::Tensor host);

  DirectWork::Copies copies_;
};

}  // namespace fairshard::comm

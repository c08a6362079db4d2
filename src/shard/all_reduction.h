#pragma once
// Every rank gets all averaged gradients, in .grad.

#include "reduction.h"

#include <ATen/core/ivalue.h>

#include <deque>
#include <vector>

namespace fairshard::shard {

/// All-reduces, or has a communication hook do something else. A bucket's memory is kept from one
/// backward to the next, with .grads as views of it.
class AllReduction : public Reduction {
 public:
  using Reduction::Reduction;

  void begin_backward(FlatGroup& group) override;
  void allocate(PendingBucket& bucket) override;
  bool keeps_gradients() const override { return true; }
  void start(PendingBucket& bucket) override;
  void finish() override;
  void publish(PendingBucket& bucket) override;
  void reset() override {
    if (!started_.empty()) {
      memory_.clear();  // collectives of a backward that was broken off still write to it
    }
    started_.clear();
  }

 private:
  struct Started {
    at::Tensor flat;
    /// What travels, if it has another dtype.
    at::Tensor wire;
    comm::Work work;
    /// What a communication hook has promised instead.
    c10::intrusive_ptr<c10::ivalue::Future> promise = nullptr;
  };

  Started run_hook(PendingBucket& bucket);

  /// By group and bucket.
  std::vector<std::vector<at::Tensor>> memory_;
  std::deque<Started> started_;
};

}  // namespace fairshard::shard

#pragma once
// The c10d::Work of a DirectBackend.

#include "call.h"
#include "operation.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fairshard::comm {

/// Ended by the progress thread. Tensors that messages cannot be received into (of other strides,
/// or on another device) are copied from those that they were received into: on the CPU before the
/// end is told, others by wait(), on the caller's stream.
class DirectWork final : public c10d::Work {
 public:
  /// A target and what it is copied from.
  using Copies = std::vector<std::pair<at::Tensor, at::Tensor>>;

  /// `since` is when it was called.
  DirectWork(const Call& call, std::shared_ptr<Operation> operation, Instant since,
             Instant deadline, const std::vector<at::Tensor>& results, Copies copies);

  std::vector<at::Tensor> result() override { return results_; }
  void synchronize() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  uint64_t getSequencenumber() const override { return call_.sequence; }
  /// Waits at most this long. Returns whether wait() would now return or throw at once.
  bool wait_for(std::chrono::milliseconds time);

  // For the progress thread.

  const Call& call() const { return call_; }
  Instant since() const { return since_; }
  Instant deadline() const { return deadline_; }
  /// Null once the collective has ended.
  const std::shared_ptr<Operation>& operation() const { return operation_; }
  std::shared_ptr<Operation> release_operation() { return std::exchange(operation_, nullptr); }
  /// Copies what is on the CPU.
  void copy_on_host();
  /// Tells all who wait; an empty error is success.
  void end(const std::string& error);

 private:
  void mark_future();

  const Call call_;
  std::shared_ptr<Operation> operation_;
  const Instant since_;
  const Instant deadline_;
  const std::vector<at::Tensor> results_;
  Copies host_copies_;    // the progress thread's
  Copies device_copies_;  // the caller's
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool is_future_marked_ = false;
};

/// Several works as one.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
      : c10d::Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace fairshard::comm

#include "direct_work.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::comm {
namespace {

c10d::OpType op_type(Kind kind) {
  using c10d::OpType;
  constexpr std::array kTypes{OpType::ALLREDUCE,      OpType::BROADCAST, OpType::ALLGATHER,
                              OpType::REDUCE_SCATTER, OpType::BARRIER,   OpType::REDUCE,
                              OpType::GATHER,         OpType::SCATTER,   OpType::ALLTOALL};
  return kTypes[static_cast<size_t>(kind)];
}

/// Without the Python object that the caller's tensors may have: the last to let go of them may be
/// the progress thread, which must not wait for Python's lock.
std::vector<at::Tensor> without_owners(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.variable_data());
  }
  return result;
}

}  // namespace

DirectWork::DirectWork(const Call& call, std::shared_ptr<Operation> operation, Instant since,
                       Instant deadline, const std::vector<at::Tensor>& results, Copies copies)
    // Without a title for profilers, as in Round::post.
    : c10d::Work(call.rank, op_type(call.kind)),
      call_(call),
      operation_(std::move(operation)),
      since_(since),
      deadline_(deadline),
      results_(without_owners(results)) {
  for (auto& copy : copies) {
    (copy.first.is_cpu() ? host_copies_ : device_copies_).push_back(std::move(copy));
  }
}

void DirectWork::copy_on_host() {
  for (const auto& [target, source] : std::exchange(host_copies_, {})) {
    target.copy_(source.view(target.sizes()));
  }
}

void DirectWork::synchronize() {
  const at::NoGradGuard no_grad;
  for (const auto& [target, source] : std::exchange(device_copies_, {})) {
    target.copy_(source.view(target.sizes()));
  }
}

bool DirectWork::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return cv_.wait_for(lock, time, [&] { return completed_; });
}

void DirectWork::end(const std::string& error) {
  finish(error.empty() ? nullptr
                       : std::make_exception_ptr(c10::DistBackendError(
                             {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, error)));
  mark_future();
}

c10::intrusive_ptr<c10::ivalue::Future> DirectWork::getFuture() {
  TORCH_CHECK(device_copies_.empty(),
              "a collective that goes through host memory has no future: wait for it");
  {
    const std::lock_guard lock(mutex_);
    if (!future_) {
      const auto type = c10::ListType::create(c10::TensorType::get());
      future_ = c10::make_intrusive<c10::ivalue::Future>(type);
    }
  }
  mark_future();
  return future_;
}

/// Once, by whoever sees first that there is a future and an end. Not under the lock: callbacks run
/// here.
void DirectWork::mark_future() {
  {
    const std::lock_guard lock(mutex_);
    if (!completed_ || !future_ || std::exchange(is_future_marked_, true)) {
      return;
    }
  }
  if (exception_) {
    future_->setError(exception_);
  } else {
    future_->markCompleted(c10::IValue(results_));
  }
}

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isSuccess(); });
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) {
    work->wait(timeout);
  }
  return true;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> results;
  for (const auto& work : works_) {
    const auto own = work->result();
    results.insert(results.end(), own.begin(), own.end());
  }
  return results;
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) {
    futures.push_back(work->getFuture());
  }
  return c10::collectAll(futures);
}

}  // namespace fairshard::comm

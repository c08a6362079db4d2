#pragma once
// A c10d backend whose collectives end when they are told to.

#include "waits.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace fairshard::test {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Ends when it is told to.
class HeldWork final : public c10d::Work {
 public:
  explicit HeldWork(bool is_stream) : is_stream_(is_stream) {}
  bool isCompleted() override { return has_ended_; }
  bool isSuccess() const override { return has_ended_; }
  bool wait(std::chrono::milliseconds) override {
    std::unique_lock lock(mutex_);
    cv_.wait(lock, [&] { return is_stream_ || has_ended_ || has_failed_; });
    TORCH_CHECK(!has_failed_, "too late");
    return true;
  }
  void abort() override { fail(); }
  void end() {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    cv_.notify_all();
  }
  void fail() {
    const std::lock_guard lock(mutex_);
    has_failed_ = true;
    cv_.notify_all();
  }

 private:
  bool is_stream_;
  std::atomic<bool> has_ended_ = false;
  bool has_failed_ = false;
};

/// As "nccl" it tells when collectives have ended, and a wait is a stream's. All of them hang.
class HangingBackend final : public c10d::Backend {
 public:
  HangingBackend(int rank, int size, std::string name)
      : c10d::Backend(rank, size), name_(std::move(name)) {}
  const std::string getBackendName() const override { return name_; }
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override { return start(); }
  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override { return start(); }
  void end_all() {
    for (const auto& work : works_) {
      work->end();
    }
  }
  void fail_all() {
    for (const auto& work : works_) {
      work->fail();
    }
  }

 private:
  WorkPtr start() {
    works_.push_back(c10::make_intrusive<HeldWork>(name_ == "nccl"));
    return works_.back();
  }

  std::string name_;
  std::vector<c10::intrusive_ptr<HeldWork>> works_;
};

/// A group of these ranks over another backend for CPU tensors.
inline comm::Group group_over(const StorePtr& store, int rank, int size,
                              const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto made = c10::make_intrusive<c10d::ProcessGroup>(
      c10::make_intrusive<c10d::PrefixStore>(backend->getBackendName(), store), rank, size);
  made->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  made->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  comm::Group result(made);
  comm::explain_waits_after(result, kSoon_s);
  return result;
}

inline comm::Group group_over(const comm::Group& like,
                              const c10::intrusive_ptr<c10d::Backend>& backend) {
  return group_over(like.process_group()->getStore(), like.rank(), like.size(), backend);
}

}  // namespace fairshard::test

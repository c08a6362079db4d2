#include "progress.h"

#include <fairshard/comm/reason.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <pthread.h>

#include <utility>

namespace fairshard::comm {

void Progress::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    if (running_) {
      running_->abort();
    }
    wake_.notify_all();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Progress::submit(WorkPtr work) {
  std::lock_guard lock(mutex_);
  TORCH_CHECK(!stop_, work->call().describe(), ": the group was shut down before");
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  started_ = work->call().sequence + 1;
  queue_.push_back(work);
  submitted_.push_back(std::move(work));
  wake_.notify_all();
}

void Progress::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return stop_ || (queue_.empty() && !is_stepping_); });
}

std::string Progress::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

Standing Progress::standing() const {
  std::lock_guard lock(mutex_);
  Standing result;
  const DirectWork* oldest = current_.get();
  for (const auto& work : queue_) {
    if (!oldest || work->call().sequence < oldest->call().sequence) {
      oldest = work.get();
    }
  }
  if (oldest) {
    result.current = NamedCall{oldest->call().sequence, oldest->call().named(), oldest->since()};
  }
  if (last_) {
    result.last = NamedCall{last_->sequence, last_->named(), last_ended_};
  }
  result.started = started_;
  result.moves = started_ + ended_count_;
  if (oldest && oldest == current_.get()) {
    result.awaited = awaited_.get();
  }
  return result;
}

void Progress::explain_timeouts(std::shared_ptr<const Verdict> verdict) {
  std::lock_guard lock(mutex_);
  verdict_ = std::move(verdict);
}

void Progress::run() {
  pthread_setname_np(pthread_self(), "fairshard-comm");
  at::NoGradGuard no_grad;

  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) {
      break;
    }
    auto work = std::move(queue_.front());
    queue_.pop_front();
    current_ = work;
    running_ = work->operation();
    is_stepping_ = true;
    start_submitted(lock);
    lock.unlock();
    const bool done = step(*work);
    lock.lock();
    is_stepping_ = false;
    current_.reset();
    if (done && failure_.empty()) {
      last_ = work->call();
      last_ended_ = std::chrono::steady_clock::now();
    }
    if (done) {
      ended_count_ += 1;
    } else {
      queue_.push_back(std::move(work));
    }
    running_.reset();
    if (queue_.empty()) {
      idle_.notify_all();
    }
  }
  idle_.notify_all();
  auto left = std::exchange(queue_, {});
  submitted_.clear();
  lock.unlock();
  for (const auto& work : left) {
    fail(*work, c10::str(work->call().describe(), ": the group was let go before it had ended"));
  }
}

void Progress::start_submitted(std::unique_lock<std::mutex>& lock) {
  const auto works = std::exchange(submitted_, {});
  lock.unlock();
  for (const auto& work : works) {
    try {
      work->operation()->start();
    } catch (const std::exception& error) {
      fail(*work, c10::str(work->call().describe(), " failed: ", reason_of(error)));
    }
  }
  lock.lock();
}

bool Progress::step(DirectWork& work) {
  if (!work.operation()) {
    return true;  // it could not even be started
  }
  const std::string earlier = failure();
  if (!earlier.empty()) {
    fail(work, c10::str(work.call().describe(), ": this group has failed before: ", earlier));
    return true;
  }
  try {
    if (!work.operation()->advance({work.deadline(), awaited_})) {
      return false;
    }
    work.copy_on_host();
    // The caller's tensors are let go before the caller hears of the end. Some take Python's lock
    // for it, and after the last collective of a program Python may be ending, and this thread with
    // it.
    {
      std::lock_guard lock(mutex_);
      running_.reset();
    }
    work.release_operation();
    work.end("");
  } catch (const std::exception& error) {
    awaited_.clear();
    const bool is_late = std::chrono::steady_clock::now() >= work.deadline();
    fail(work, c10::str(work.call().describe(), " failed: ", reason_of(error),
                        is_late ? explanation() : ""));
  }
  return true;
}

std::string Progress::explanation() const {
  std::lock_guard lock(mutex_);
  return verdict_ ? verdict_->addition() : "";
}

void Progress::fail(DirectWork& work, const std::string& error) {
  {
    std::lock_guard lock(mutex_);
    failed_.push_back(work.release_operation());
    if (failure_.empty()) {
      failure_ = error;
    }
  }
  work.end(error);
}

}  // namespace fairshard::comm

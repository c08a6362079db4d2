#include "progress.h"

#include <fairshard/comm/reason.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <pthread.h>

#include <utility>

namespace fairshard::comm {

struct Progress::Task final : Pending {
  Task(const Call& call, std::shared_ptr<Operation> operation, Deadline deadline,
       std::shared_ptr<Waited> waited)
      : call(call),
        operation(std::move(operation)),
        deadline(deadline),
        waited(std::move(waited)) {}

  void wait() override {
    std::unique_lock lock(mutex);
    if (!done) {
      const auto start = std::chrono::steady_clock::now();
      changed.wait(lock, [&] { return done; });
      add_to_waited(std::chrono::steady_clock::now() - start);
    }
    if (!error.empty()) {
      C10_THROW_ERROR(DistBackendError, error);
    }
  }

  bool is_done() const override {
    std::lock_guard lock(mutex);
    return done;
  }

  bool is_done_within(std::chrono::milliseconds time) override {
    std::unique_lock lock(mutex);
    if (!done) {
      const auto start = std::chrono::steady_clock::now();
      changed.wait_for(lock, time, [&] { return done; });
      add_to_waited(std::chrono::steady_clock::now() - start);
    }
    return done;
  }

  /// An atomic duration has no addition of its own.
  void add_to_waited(std::chrono::nanoseconds time) const {
    auto before = waited->load();
    while (!waited->compare_exchange_weak(before, before + time)) {
    }
  }

  const Call call;
  std::shared_ptr<Operation> operation;
  const Deadline deadline;
  const std::shared_ptr<Waited> waited;

  mutable std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::string error;
};

Progress::~Progress() {
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

std::shared_ptr<Pending> Progress::submit(const Call& call, std::shared_ptr<Operation> operation,
                                          std::chrono::milliseconds timeout) {
  auto task = std::make_shared<Task>(call, std::move(operation),
                                     std::chrono::steady_clock::now() + timeout, waited_);
  std::lock_guard lock(mutex_);
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  queue_.push_back(task);
  submitted_.push_back(task);
  wake_.notify_all();
  return task;
}

std::string Progress::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
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
    const auto task = queue_.front();
    queue_.pop_front();
    running_ = task->operation;
    start_submitted(lock);
    lock.unlock();
    const bool done = step(*task);
    lock.lock();
    if (!done) {
      queue_.push_back(task);
    }
    running_.reset();
  }
  auto left = std::exchange(queue_, {});
  lock.unlock();
  for (const auto& task : left) {
    finish(*task, c10::str(task->call.describe(), ": the group was let go before it had ended"));
  }
}

void Progress::start_submitted(std::unique_lock<std::mutex>& lock) {
  const auto tasks = std::exchange(submitted_, {});
  lock.unlock();
  for (const auto& task : tasks) {
    try {
      task->operation->start();
    } catch (const std::exception& error) {
      finish(*task, c10::str(task->call.describe(), " failed: ", reason_of(error)));
    }
  }
  lock.lock();
}

bool Progress::step(Task& task) {
  if (!task.operation) {
    return true;  // it could not even be started
  }
  const std::string earlier = failure();
  if (!earlier.empty()) {
    finish(task, c10::str(task.call.describe(), ": this group has failed before: ", earlier));
    return true;
  }
  try {
    if (!task.operation->advance(task.deadline)) {
      return false;
    }
    // The caller's tensors are let go before the caller hears of the end. Some take Python's lock
    // for it, and after the last collective of a program Python may be ending, and this thread with
    // it.
    forget_running();
    task.operation.reset();
    finish(task, "");
  } catch (const std::exception& error) {
    finish(task, c10::str(task.call.describe(), " failed: ", reason_of(error)));
  }
  return true;
}

void Progress::forget_running() {
  std::lock_guard lock(mutex_);
  running_.reset();
}

void Progress::finish(Task& task, std::string error) {
  if (!error.empty()) {
    std::lock_guard lock(mutex_);
    failed_.push_back(std::exchange(task.operation, nullptr));
    if (failure_.empty()) {
      failure_ = error;
    }
  }
  std::lock_guard lock(task.mutex);
  task.error = std::move(error);
  task.done = true;
  task.changed.notify_all();
}

}  // namespace fairshard::comm

#include "batch_source.h"

#include <pthread.h>

#include <utility>

namespace fairshard::cli::training {
namespace {

/// Steps that are prepared ahead.
constexpr size_t kAhead = 4;

}  // namespace

BatchSource::BatchSource(const TrainingText& text, const BatchShare& share, int64_t first)
    : text_(text), share_(share), thread_([this, first] { run(first); }) {}

BatchSource::~BatchSource() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void BatchSource::run(int64_t step) {
  pthread_setname_np(pthread_self(), "fairshard-data");
  std::unique_lock lock(mutex_);
  try {
    for (;; ++step) {
      changed_.wait(lock, [&] { return is_ending_ || ready_.size() < kAhead; });
      if (is_ending_) {
        return;
      }
      lock.unlock();
      auto parts = prepare(step);
      lock.lock();
      ready_.push_back(std::move(parts));
      changed_.notify_all();
    }
  } catch (...) {
    if (!lock.owns_lock()) {
      lock.lock();
    }
    error_ = std::current_exception();
    changed_.notify_all();
  }
}

std::vector<gpt::Batch> BatchSource::prepare(int64_t step) const {
  const int64_t windows = share_.windows_per_part();
  std::vector<gpt::Batch> parts;
  for (int64_t part = 0; part < share_.accumulate; ++part) {
    const int64_t first = (share_.rank * share_.accumulate + part) * windows;
    parts.push_back(text_.sample(first, windows, step));
  }
  return parts;
}

std::vector<gpt::Batch> BatchSource::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return error_ || !ready_.empty(); });
  if (ready_.empty()) {
    std::rethrow_exception(error_);
  }
  auto parts = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  return parts;
}

}  // namespace fairshard::cli::training

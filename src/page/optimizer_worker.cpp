#include "fused_step.h"
#include <fairshard/page/optimizer_worker.h>
#include <fairshard/scale/scaled_backward.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>

namespace fairshard::page {
namespace {

/// Elements that a thread takes at a time: few enough that threads end together.
constexpr int64_t kChunk = 1 << 18;
/// Cores that are left to copies and kernel launches.
constexpr unsigned kSpareCores = 2;

int64_t checked_threads(int64_t threads) {
  TORCH_CHECK_VALUE(threads >= 0, "optimizer_threads is ", threads, ", but must be at least 0");
  const unsigned cores = std::max(std::thread::hardware_concurrency(), kSpareCores + 1);
  return threads > 0 ? threads : cores - kSpareCores;
}

}  // namespace

/// One thread waits for gradients and shares them out; the others step.
class OptimizerWorker::Threads {
 public:
  Threads(Pager& pager, int64_t count) : pager_(pager) {
    for (size_t slice = 0; slice <= pager.slices(); ++slice) {
      for (const at::Tensor& parameter : pager.parameters_of(slice)) {
        slice_of_[parameter.unsafeGetTensorImpl()] = slice;
      }
    }
    threads_.emplace_back([this] { take_slices(); });
    for (int64_t i = 0; i < count; ++i) {
      threads_.emplace_back([this] { take_chunks(); });
    }
  }

  ~Threads() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) {
      thread.join();
    }
  }

  void add(size_t slice) {
    const std::lock_guard lock(mutex_);
    arrived_.push_back(slice);
    open_.insert(slice);
    changed_.notify_all();
  }

  void plan(const at::Tensor& parameter, const StepOptions& options, const StepState& state) {
    slice_of(parameter);
    plans_[parameter.unsafeGetTensorImpl()] = {options, state};
  }

  size_t slice_of(const at::Tensor& parameter) const {
    const auto found = slice_of_.find(parameter.unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(found != slice_of_.end(), "the optimizer has a parameter of shape ",
                      parameter.sizes(), " that is not one of the offloaded model's");
    return found->second;
  }

  bool has_plan(const at::Tensor& parameter) const {
    return plans_.contains(parameter.unsafeGetTensorImpl());
  }

  void wait() {
    wait_until([this] { return open_.empty(); });
    wait_for_plans();
  }

  /// What has gone wrong is for the next wait(): this may be called within a backward.
  void wait_for(size_t slice) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this, slice] { return !open_.contains(slice); });
  }

  void wait_for_plans() {
    wait_until([this] { return arrived_.empty() && !is_taking_; });
    const std::lock_guard lock(mutex_);
    is_new_ = true;
  }

  double busy_s() {
    const std::lock_guard lock(mutex_);
    return thread_s_ / static_cast<double>(threads_.size() - 1);
  }
  int64_t elements() {
    const std::lock_guard lock(mutex_);
    return elements_;
  }

 private:
  struct Plan {
    StepOptions options;
    StepState state;
  };
  /// A slice that is being stepped.
  struct Work {
    size_t slice;
    std::vector<StepTarget> targets;
    std::chrono::steady_clock::time_point start;
    size_t open_chunks = 0;
  };
  struct Chunk {
    std::shared_ptr<Work> work;
    const StepTarget* target;
    int64_t begin;
    int64_t end;
  };

  template <typename Condition>
  void wait_until(Condition condition) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, condition);
    if (error_) {
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
  }

  void take_slices() {
    const at::NoGradGuard no_grad;
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_ending_ || !arrived_.empty(); });
      if (arrived_.empty()) {
        return;
      }
      const size_t slice = arrived_.front();
      arrived_.pop_front();
      is_taking_ = true;
      lock.unlock();
      std::exception_ptr error;
      try {
        start(slice);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      is_taking_ = false;
      if (error) {
        error_ = error;
        open_.erase(slice);
      }
      changed_.notify_all();
    }
  }

  /// Does not wait for the chunks: those of the next slice follow without a gap.
  void start(size_t slice) {
    auto work = std::make_shared<Work>(Work{slice, targets_of(slice), {}});
    work->start = std::chrono::steady_clock::now();
    std::vector<Chunk> chunks;
    for (const StepTarget& target : work->targets) {
      if (!is_for_ranges(target)) {
        step_whole(target);
        continue;
      }
      count_step(target);
      for (int64_t begin = 0; begin < target.parameter.numel(); begin += kChunk) {
        const int64_t end = std::min(begin + kChunk, target.parameter.numel());
        chunks.push_back({work, &target, begin, end});
      }
    }
    std::unique_lock lock(mutex_);
    if (std::exchange(is_new_, false)) {
      thread_s_ = 0;
      elements_ = 0;
    }
    thread_s_ += seconds_since(work->start) * static_cast<double>(threads_.size() - 1);
    for (const StepTarget& target : work->targets) {
      elements_ += target.parameter.numel();
    }
    work->open_chunks = chunks.size();
    if (chunks.empty()) {
      finish(*work, lock);
    } else {
      auto& queue = chunks_[turn_of(slice)];
      queue.insert(queue.end(), chunks.begin(), chunks.end());
      changed_.notify_all();
    }
  }

  void finish(const Work& work, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    pager_.mark_images(work.slice);
    pager_.record_span("optimizer", "slice " + std::to_string(work.slice), work.start);
    lock.lock();
    open_.erase(work.slice);
    changed_.notify_all();
  }

  /// See Note [Order of steps]. The common parameters, which have the last number, are needed at
  /// once.
  size_t turn_of(size_t slice) const { return slice == pager_.slices() ? 0 : slice + 1; }

  std::vector<StepTarget> targets_of(size_t slice) {
    std::vector<StepTarget> targets;
    for (Arrival& arrival : pager_.wait_for_gradients(slice)) {
      const auto plan = plans_.find(arrival.identity);
      TORCH_CHECK(plan != plans_.end(), "a parameter of shape ", arrival.parameter.sizes(),
                  " in slice ", slice,
                  " has a gradient, but is not in the optimizer that was "
                  "given to the offloaded model: give it to it or freeze it");
      targets.push_back({std::move(arrival.parameter), std::move(arrival.image),
                         std::move(arrival.gradient), plan->second.options, plan->second.state});
    }
    return targets;
  }

  void take_chunks() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return (is_ending_ && open_.empty()) || !chunks_.empty(); });
      if (chunks_.empty()) {
        return;
      }
      const auto first = chunks_.begin();
      const Chunk chunk = first->second.front();
      first->second.pop_front();
      if (first->second.empty()) {
        chunks_.erase(first);
      }
      lock.unlock();
      const auto start = std::chrono::steady_clock::now();
      step_range(*chunk.target, chunk.begin, chunk.end);
      const double seconds = seconds_since(start);
      lock.lock();
      thread_s_ += seconds;
      if (--chunk.work->open_chunks == 0) {
        finish(*chunk.work, lock);
      }
    }
  }

  static double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  Pager& pager_;
  std::unordered_map<const c10::TensorImpl*, size_t> slice_of_;
  std::unordered_map<const c10::TensorImpl*, Plan> plans_;
  std::mutex mutex_;
  std::condition_variable changed_;
  /// Slices whose gradients come; of those, whether one is being split into chunks; the chunks of
  /// slices by turns; and all slices that are not yet done.
  std::deque<size_t> arrived_;
  bool is_taking_ = false;
  std::map<size_t, std::deque<Chunk>> chunks_;
  std::set<size_t> open_;
  double thread_s_ = 0;
  int64_t elements_ = 0;
  bool is_new_ = true;
  bool is_ending_ = false;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

OptimizerWorker::OptimizerWorker(std::shared_ptr<Pager> pager, int64_t threads)
    : pager_(std::move(pager)),
      threads_(comm::make_process_owned<Threads>(*pager_, checked_threads(threads))) {
  set_stepping(true);
  pager_->set_before_use([threads = threads_.get()](size_t slice) { threads->wait_for(slice); });
}

OptimizerWorker::~OptimizerWorker() {
  set_stepping(false);
  pager_->set_before_use({});
}

void OptimizerWorker::plan(const at::Tensor& parameter, const StepOptions& options,
                           const StepState& state) {
  threads_->plan(parameter, options, state);
}

std::vector<at::Tensor> OptimizerWorker::without_plan() const {
  std::vector<at::Tensor> result;
  for (size_t slice = 0; slice <= pager_->slices(); ++slice) {
    for (const at::Tensor& parameter : pager_->parameters_of(slice)) {
      if (parameter.requires_grad() && !threads_->has_plan(parameter)) {
        result.push_back(parameter);
      }
    }
  }
  return result;
}

at::Tensor OptimizerWorker::home_of(const at::Tensor& state, const at::Tensor& parameter) {
  if (state.defined()) {
    const auto found = homes_.find(state.storage().unsafeGetStorageImpl());
    if (found != homes_.end() && !found->second.expired()) {
      return state;
    }
  }
  at::Tensor home = pager_->zeros_like(threads_->slice_of(parameter), parameter);
  homes_.insert_or_assign(
      home.storage().unsafeGetStorageImpl(),
      c10::weak_intrusive_ptr<c10::StorageImpl>(home.storage().getWeakStorageImpl()));
  if (state.defined()) {
    home.copy_(state);
  }
  return home;
}

void OptimizerWorker::set_stepping(bool is_on) {
  if (is_on) {
    pager_->set_consumer([threads = threads_.get()](size_t slice) {
      TORCH_CHECK(scale::scaler_of_backward() == 0,
                  "gradients of a scaled loss cannot be stepped in backward, before it is known "
                  "whether all are finite: leave the optimizer out of the OffloadModel");
      threads->add(slice);
    });
  } else {
    pager_->set_consumer({});
  }
}

void OptimizerWorker::wait() { threads_->wait(); }

void OptimizerWorker::wait_for_plans() { threads_->wait_for_plans(); }

double OptimizerWorker::busy_s() const { return threads_->busy_s(); }

int64_t OptimizerWorker::elements() const { return threads_->elements(); }

}  // namespace fairshard::page

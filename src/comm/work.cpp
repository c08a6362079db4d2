#include "direct_work.h"
#include "work_state.h"
#include <fairshard/comm/profiler_range.h>
#include <fairshard/comm/work.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <thread>
#include <utility>

namespace fairshard::comm {
namespace {

/// Counts the time that the host spends in it.
class Waiting {
 public:
  explicit Waiting(Group::State& group) : group_(group) {}
  ~Waiting() {
    group_.waited_ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count();
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  Group::State& group_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Tells the group's watch about it, which our own backend does itself.
void wait_for_other_backend(Work::State& state) {
  LastCalls& calls = state.group->last_calls;
  calls.begin_wait(state.number);
  const auto end = c10::make_scope_exit([&] { calls.end_wait(state.number, state.device); });
  try {
    state.work->wait();  // with a timeout of its own NCCL would make the host wait for the device
  } catch (c10::Error& error) {
    const std::string known = state.group->watch ? state.group->watch->verdict()->addition() : "";
    if (!known.empty()) {
      error.add_context(known);
    }
    throw;
  }
}

}  // namespace

Work::State::~State() {
  if (number != 0) {
    group->last_calls.forget(number);
  }
}

void Work::wait() {
  if (!state_) {
    return;
  }
  const Waiting waiting(*state_->group);
  const ProfilerRange range([&] { return "wait for " + state_->name; });
  if (state_->number == 0) {
    state_->work->wait();
  } else {
    wait_for_other_backend(*state_);
  }
  if (state_->result.defined()) {
    const at::NoGradGuard no_grad;
    state_->result.copy_(std::exchange(state_->arrival, {}).view(state_->result.sizes()));
    state_->result.reset();
  }
}

bool Work::is_done() const { return !state_ || state_->work->isCompleted(); }

bool Work::is_done_within(std::chrono::milliseconds time) {
  if (!state_) {
    return true;
  }
  const Waiting waiting(*state_->group);
  const ProfilerRange range([&] { return "wait for " + state_->name; });
  if (auto* const direct = dynamic_cast<DirectWork*>(state_->work.get())) {
    return direct->wait_for(time);
  }
  if (!state_->tells_completion) {
    return true;
  }
  const auto end = std::chrono::steady_clock::now() + time;
  while (!state_->work->isCompleted()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

}  // namespace fairshard::comm

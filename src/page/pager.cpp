#include "boundary.h"
#include "pager_impl.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace fairshard::page {

void Pager::begin(bool keeps_graph) {
  abandon();
  collect_waits();
  if (streams_->activations) {
    streams_->activations->begin();
  }
  for (Slot& slot : slots_) {
    if (slot.slice != kNone) {
      slices_[slot.slice]->empty();
      slot.slice = kNone;
    }
  }
  report_.bytes_in = report_.bytes_out = report_.fills = 0;
  report_.wait_s = 0;
  phase_ = Phase::kForward;
  keeps_graph_ = keeps_graph;
  prefetch(kNone);
  if (common().bytes() > 0) {
    fill(slices());
    enter(slices());
  }
}

std::vector<at::Tensor> Pager::cross(int64_t to, const std::vector<at::Tensor>& values) {
  TORCH_CHECK(phase_ == Phase::kForward, "a slice was called outside of a forward pass");
  TORCH_CHECK(to >= kNone && to < report_.slices, "there is no slice ", to);
  const int64_t from = current_;
  if (from == to && to != kNone) {
    return values;
  }
  cross_forward(to);
  auto result = mark_boundary(
      values, [pager = shared_from_this(), from, to] { pager->cross_backward(from, to); });
  if (streams_->activations && keeps_graph_) {
    report_.bytes_out += streams_->activations->cross(to, result);
  }
  return result;
}

void Pager::cross_forward(int64_t to) {
  if (current_ != kNone) {
    leave(current_);
  }
  if (to == kNone) {
    end_forward();
    return;
  }
  enter(to);
  prefetch(to);
}

void Pager::end_forward() {
  if (common().is_entered()) {
    leave(slices());
  }
  // Whoever changes weights from here on must not do so under a copy.
  streams_->last_fill.wait();
  phase_ = Phase::kIdle;
}

void Pager::cross_backward(int64_t from, int64_t to) {
  const int backward = torch::autograd::get_current_graph_task_id();
  if (phase_ != Phase::kBackward || backward != backward_) {
    abandon();
    backward_ = backward;
    begin_backward();
  }
  if (current_ != kNone && (current_ == to || from != kNone)) {
    leave_with_gradients(current_);
  }
  if (from != kNone) {
    slices_[from]->is_filled() ? void() : fill(from);
    const auto is_pending = std::find(pending_.begin(), pending_.end(), from) != pending_.end();
    is_pending ? publish(from) : void();
    slices_[from]->set_gradients_aside();
    if (auto* activations = streams_->activations.get()) {
      report_.bytes_in += activations->start_filling(from);
      activations->hold_until_filled(from, current_stream(options_.device()));
      report_.bytes_in += from > 0 ? activations->start_filling(from - 1) : 0;
    }
    enter(from);
    prefetch(from);
  }
}

/// Lives as long as a backward does, so that one which throws does not leave parameters on the
/// device.
struct Pager::BackwardGuard {
  std::weak_ptr<Pager> pager;
  int backward;

  std::shared_ptr<Pager> running() const {
    auto self = pager.lock();
    return self && self->phase_ == Phase::kBackward && self->backward_ == backward ? self : nullptr;
  }
  void finish() const {
    if (const auto self = running()) {
      self->finish_backward();
    }
  }

  BackwardGuard(std::weak_ptr<Pager> owner, int number)
      : pager(std::move(owner)), backward(number) {}
  ~BackwardGuard() {
    try {
      if (const auto self = running()) {
        self->abandon();
      }
    } catch (const std::exception& error) {
      TORCH_WARN("after a backward that threw: ", error.what());
    }
  }
  BackwardGuard(const BackwardGuard&) = delete;
  BackwardGuard& operator=(const BackwardGuard&) = delete;
};

void Pager::begin_backward() {
  phase_ = Phase::kBackward;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [guard = std::make_shared<BackwardGuard>(weak_from_this(), backward_)] { guard->finish(); });
  if (common().bytes() > 0) {
    common().is_filled() ? void() : fill(slices());
    common().set_gradients_aside();
    enter(slices());
  }
}

void Pager::finish_backward() {
  if (current_ != kNone) {
    leave_with_gradients(current_);
  }
  if (common().is_entered()) {
    leave_with_gradients(slices());
  }
  while (!pending_.empty()) {
    publish(pending_.front());
  }
  streams_->last_fill.wait();
  if (streams_->activations) {
    streams_->activations->begin();
  }
  phase_ = Phase::kIdle;
  collect_waits();
  if (after_backward_) {
    after_backward_();
  }
}

void Pager::abandon() {
  for (size_t i = 0; i < slices_.size(); ++i) {
    if (slices_[i]->is_entered()) {
      leave(i);
      if (phase_ == Phase::kBackward) {
        slices_[i]->restore_gradients();
      }
    }
  }
  while (!pending_.empty()) {
    publish(pending_.front());
  }
  current_ = kNone;
  phase_ = Phase::kIdle;
}

void Pager::collect_waits() {
  for (const auto& [before, after] : streams_->waits) {
    after.wait();
    report_.wait_s += after.seconds_since(before);
  }
  streams_->waits.clear();
}

PagerReport Pager::report() {
  collect_waits();
  PagerReport report = report_;
  if (streams_->activations) {
    report.host_bytes += streams_->activations->host_bytes();
    report.pinned_bytes += options_.device().is_cpu() ? 0 : streams_->activations->host_bytes();
  }
  return report;
}

std::vector<Span> Pager::take_spans() { return streams_->trace.take(); }

void Pager::record_span(const std::string& track, const std::string& name,
                        Clock::time_point start) {
  streams_->trace.add(track, name, start, Clock::now());
}

}  // namespace fairshard::page

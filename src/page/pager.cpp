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
    is_pending ? deliver(from) : void();
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
    deliver(pending_.front());
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
    deliver(pending_.front());
  }
  current_ = kNone;
  phase_ = Phase::kIdle;
}

void Pager::enter(size_t slice) {
  const c10::Stream stream = current_stream(options_.device());
  if (!slices_[slice]->is_filled()) {
    fill(slice);
  }
  const Moment before(stream, true);
  streams_->filled[slice].hold(stream);
  streams_->entered = Moment(stream, true);
  streams_->waits.emplace_back(before, streams_->entered);
  slices_[slice]->enter();
  if (slice != slices()) {
    current_ = static_cast<int64_t>(slice);
  }
}

void Pager::leave(size_t slice) {
  const Moment now(current_stream(options_.device()), true);
  for (Slot& slot : slots_) {
    if (slot.slice == static_cast<int64_t>(slice)) {
      slot.free = now;
    }
  }
  slices_[slice]->leave();
  if (slice != slices()) {
    streams_->trace.add("compute", slice, streams_->entered, now);
    current_ = kNone;
  }
}

void Pager::leave_with_gradients(size_t number) {
  PagedSlice& slice = *slices_[number];
  const bool is_any = slice.pack_gradients();
  leave(number);
  if (streams_->activations && number != slices()) {
    streams_->activations->release(static_cast<int64_t>(number));
  }
  if (!is_any) {
    slice.deliver_gradients();
    return;
  }
  if (!slice.has_gradient_memory()) {  // frozen when the pager was made
    slice.set_gradients(is_spilled_[number]
                            ? HostMemory::in_file(slice.bytes(), options_.spill_dir())
                            : HostMemory::in_ram(slice.bytes(), !options_.device().is_cpu()),
                        0);
  }
  const auto slot = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& each) {
    return each.slice == static_cast<int64_t>(number);
  });
  before_use_ ? before_use_(number) : void();  // of its gradients' memory, too
  slot->free.hold(streams_->out.stream());
  streams_->out.run([&] {
    const Moment start(streams_->out.stream(), true);
    report_.bytes_out += slice.send_gradients(slot->memory);
    streams_->arrived[number] = Moment(streams_->out.stream(), true);
    streams_->trace.add("copy out", number, start, streams_->arrived[number]);
  });
  slot->free = streams_->arrived[number];
  slot->slice = kNone;  // gradients have taken the place of the weights
  slice.empty();
  if (consumer_) {
    consumer_(number);
  } else {
    pending_.push_back(number);
  }
}

void Pager::deliver(size_t slice) {
  streams_->arrived[slice].wait();
  slices_[slice]->deliver_gradients();
  pending_.erase(std::find(pending_.begin(), pending_.end(), slice));
}

/// Fills the slices after this one, in the direction of the pass.
void Pager::prefetch(int64_t slice) {
  const int64_t step = phase_ == Phase::kBackward ? -1 : 1;
  const int64_t ahead = options_.prefetch() + (slice == kNone ? 1 : 0);
  for (int64_t i = 1; i <= ahead; ++i) {
    const int64_t next = slice + i * step;
    if (next < 0 || next >= report_.slices) {
      return;
    }
    if (!slices_[next]->is_filled()) {
      if (choose_slot(next, /*must=*/false) == kNone) {
        return;
      }
      fill(next);
    }
  }
}

void Pager::fill(size_t number) {
  PagedSlice& slice = *slices_[number];
  const int64_t place =
      number == slices() ? report_.slots : choose_slot(static_cast<int64_t>(number), true);
  TORCH_CHECK(place != kNone, "no slot is free for slice ", number);
  Slot& slot = slots_[place];
  if (slot.slice != kNone) {
    slices_[slot.slice]->empty();
  }
  before_use_ ? before_use_(number) : void();
  if (phase_ == Phase::kForward) {
    streams_->filled[number].wait();  // the image may still be on its way from the last pass
    slice.refresh_images();
  }
  slot.free.hold(streams_->in.stream());
  streams_->in.run([&] {
    const Moment start(streams_->in.stream(), true);
    slot.memory.narrow(0, 0, slice.bytes()).copy_(slice.image_bytes(), /*non_blocking=*/true);
    streams_->filled[number] = Moment(streams_->in.stream(), true);
    streams_->trace.add("copy in", number, start, streams_->filled[number]);
  });
  streams_->last_fill = streams_->filled[number];
  slot.slice = static_cast<int64_t>(number);
  slice.fill(slot.memory);
  report_.bytes_in += slice.bytes();
  ++report_.fills;
  const auto filled = std::count_if(slices_.begin(), slices_.end() - 1,
                                    [](const auto& each) { return each->is_filled(); });
  report_.most_filled = std::max<int64_t>(report_.most_filled, filled);
}

/// A slot for slice `wanted`: an empty one, or that of the slice which is needed last. Slices that
/// were filled ahead, between the one that computes and the wanted one, are kept, unless `must`.
int64_t Pager::choose_slot(int64_t wanted, bool must) const {
  const int64_t step = phase_ == Phase::kBackward ? -1 : 1;
  const int64_t start = current_ != kNone ? current_ : step > 0 ? -1 : report_.slices;
  int64_t best = kNone;
  int64_t best_distance = 0;
  for (int64_t i = 0; i < report_.slots; ++i) {
    const int64_t held = slots_[i].slice;
    if (held == kNone) {
      return i;
    }
    const bool is_on_the_way = (held - start) * step > 0 && (wanted - held) * step > 0;
    if (held == current_ || (is_on_the_way && !must)) {
      continue;
    }
    const int64_t distance = slices_until(held, wanted);
    if (distance > best_distance) {
      best = i;
      best_distance = distance;
    }
  }
  return best;
}

/// How many slices lie between the use of `wanted` and the next use of `held`.
int64_t Pager::slices_until(int64_t held, int64_t wanted) const {
  const int64_t ahead = phase_ == Phase::kBackward ? wanted - held : held - wanted;
  if (ahead > 0) {
    return ahead;
  }
  const int64_t last = report_.slices - 1;
  const bool comes_back = phase_ == Phase::kForward && keeps_graph_;
  return comes_back ? (last - wanted) + (last - held) + 1 : 3 * report_.slices - ahead;
}

std::vector<Arrival> Pager::wait_for_gradients(size_t slice) {
  const at::NoGradGuard no_grad;
  streams_->arrived[slice].wait_idly();
  std::vector<Arrival> arrivals;
  for (PagedParameter& paged : slices_[slice]->parameters()) {
    at::Tensor gradient = paged.arrives ? paged.gradient : at::Tensor();
    if (paged.old_gradient.defined()) {
      gradient = gradient.defined() ? paged.old_gradient.add_(gradient) : paged.old_gradient;
    }
    if (gradient.defined()) {
      const bool has_image = !paged.parameter.is_alias_of(paged.image);
      arrivals.push_back({paged.parameter.unsafeGetTensorImpl(), paged.parameter.detach(),
                          has_image ? paged.image : at::Tensor(), gradient});
    }
  }
  return arrivals;
}

void Pager::mark_images(size_t slice) {
  for (PagedParameter& paged : slices_[slice]->parameters()) {
    if (paged.arrives || paged.old_gradient.defined()) {
      paged.seen_version = paged.parameter._version();
      paged.arrives = false;
      paged.old_gradient.reset();
    }
  }
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

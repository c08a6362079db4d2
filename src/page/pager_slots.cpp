// Which slices are in the device's slots, and when.
#include "eviction.h"
#include "pager_impl.h"
#include <fairshard/comm/profiler_range.h>

#include <c10/util/Exception.h>

#include <algorithm>

namespace fairshard::page {

void Pager::enter(size_t slice) {
  const comm::ProfilerRange range([&] { return c10::str("enter slice ", slice); });
  const c10::Stream stream = current_stream(options_.device());
  if (!slices_[slice]->is_filled()) {
    fill(slice);
  }
  const Event before(stream, true);
  streams_->filled[slice].hold(stream);
  streams_->entered = Event(stream, true);
  streams_->waits.emplace_back(before, streams_->entered);
  slices_[slice]->enter();
  if (slice != slices()) {
    current_ = static_cast<int64_t>(slice);
  }
}

void Pager::leave(size_t slice) {
  const Event now(current_stream(options_.device()), true);
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
  const comm::ProfilerRange range([&] { return c10::str("page in slice ", number); });
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
    const Event start(streams_->in.stream(), true);
    slot.memory.narrow(0, 0, slice.bytes()).copy_(slice.image_bytes(), /*non_blocking=*/true);
    streams_->filled[number] = Event(streams_->in.stream(), true);
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

int64_t Pager::choose_slot(int64_t wanted, bool must) const {
  std::vector<int64_t> held;
  for (int64_t i = 0; i < report_.slots; ++i) {
    held.push_back(slots_[i].slice);
  }
  const PassState pass{.slices = report_.slices,
                       .is_backward = phase_ == Phase::kBackward,
                       .comes_back = phase_ == Phase::kForward && keeps_graph_,
                       .current = current_};
  return page::choose_slot(held, pass, wanted, must);
}

}  // namespace fairshard::page

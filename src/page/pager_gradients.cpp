// Gradients on their way from the device to the parameters in host memory, or to a consumer.
#include "pager_impl.h"
#include <fairshard/comm/profiler_range.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace fairshard::page {

void Pager::leave_with_gradients(size_t number) {
  const comm::ProfilerRange range([&] { return c10::str("page out gradients of slice ", number); });
  PagedSlice& slice = *slices_[number];
  const bool is_any = slice.pack_gradients();
  leave(number);
  if (streams_->activations && number != slices()) {
    streams_->activations->release(static_cast<int64_t>(number));
  }
  if (!is_any) {
    slice.publish_gradients();
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
    const Event start(streams_->out.stream(), true);
    report_.bytes_out += slice.send_gradients(slot->memory);
    streams_->arrived[number] = Event(streams_->out.stream(), true);
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

void Pager::publish(size_t slice) {
  streams_->arrived[slice].wait();
  slices_[slice]->publish_gradients();
  pending_.erase(std::find(pending_.begin(), pending_.end(), slice));
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

}  // namespace fairshard::page

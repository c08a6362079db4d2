#pragma once
// What a Pager is made of.

#include "activations.h"
#include "copy_stream.h"
#include "paged_slice.h"
#include "trace.h"
#include <fairshard/page/pager.h>

#include <utility>
#include <vector>

namespace fairshard::page {

struct Pager::Slot {
  at::Tensor memory;
  int64_t slice = kNone;
  /// From here on the memory may be written to.
  Event free;
};

struct Pager::Streams {
  explicit Streams(at::Device device, bool records)
      : in(device), out(device), trace(current_stream(device), records) {}
  CopyStream in;
  CopyStream out;
  Trace trace;
  /// If they go to the host.
  std::unique_ptr<Activations> activations;
  /// Of each slice: when its weights, and its gradients, have arrived.
  std::vector<Event> filled;
  std::vector<Event> arrived;
  Event last_fill;
  Event entered;
  std::vector<std::pair<Event, Event>> waits;
};

}  // namespace fairshard::page

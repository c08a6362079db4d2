#include "packing.h"

#include <ATen/ops/_foreach_copy.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace fairshard::shard {

void check_can_be_reduced(const Parameter& parameter, const at::Tensor& gradient) {
  TORCH_CHECK_TYPE(gradient.layout() == at::kStrided, "the gradient of parameter '", parameter.name,
                   "' is ", gradient.layout(), ", but only dense gradients can be reduced");
  TORCH_CHECK(!gradient.requires_grad(), "the gradient of parameter '", parameter.name,
              "' itself requires a gradient (create_graph), which cannot be reduced");
}

void Packing::add_stream(const at::Device& device) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) {
    streams_.push_back(stream);
  }
}

at::Tensor Packing::place(const FlatBucket& bucket, size_t slot, const at::Tensor& flat,
                          bool keeps) {
  const auto& slots = bucket.layout().slots;
  if (!keeps) {
    return view_of(bucket.parameter(slot), slots[slot], flat);
  }
  if (!kept_.is_same(flat)) {
    kept_ = flat;
    kept_places_.assign(slots.size(), at::Tensor());
  }
  at::Tensor& place = kept_places_[slot];
  if (!place.defined()) {
    place = view_of(bucket.parameter(slot), slots[slot], flat);
  }
  return place;
}

void Packing::pack(const FlatBucket& bucket, const at::Tensor& flat, bool keeps) {
  const auto& slots = bucket.layout().slots;
  std::vector<at::Tensor> places;
  std::vector<at::Tensor> gradients;
  places.reserve(slots.size());
  gradients.reserve(slots.size());
  const auto* const start = static_cast<const char*>(flat.const_data_ptr());
  for (size_t i = 0; i < slots.size(); ++i) {
    const Parameter& parameter = bucket.parameter(i);
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined() || is_grad_handle(gradient)) {
      continue;
    }
    check_can_be_reduced(parameter, gradient);
    if (gradient.const_data_ptr() == start + slots[i].offset * flat.element_size()) {
      continue;  // it is in its place already
    }
    places.push_back(place(bucket, i, flat, keeps));
    gradients.push_back(std::exchange(gradient, keeps ? places.back() : at::Tensor()));
  }
  follow_streams(gradients);
  if (!places.empty()) {
    at::_foreach_copy_(places, gradients);
  }
}

/// The current stream waits for those that gradients were made on, whose memory it reads.
void Packing::follow_streams(const std::vector<at::Tensor>& gradients) {
  for (const c10::Stream& stream : std::exchange(streams_, {})) {
    const c10::impl::VirtualGuardImpl device(stream.device_type());
    const c10::Stream current = device.getStream(stream.device());
    if (current != stream) {
      c10::Event event(stream.device_type());
      event.record(stream);
      event.block(current);
      for (const at::Tensor& gradient : gradients) {
        gradient.record_stream(current);
      }
    }
  }
}

}  // namespace fairshard::shard

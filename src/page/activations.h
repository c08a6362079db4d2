#pragma once
// Values between slices, kept in host memory from forward to backward.

#include "copy_stream.h"
#include <fairshard/page/host_memory.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <deque>
#include <memory>
#include <vector>

namespace fairshard::page {

/// For slices whose activations are computed again: nobody but the slice uses its inputs between
/// the two runs. As with weights (Note [Filled storages]), the storages stay and their memory goes.
class Activations {
 public:
  Activations(at::Device device, size_t slices, const CopyStream& in, const CopyStream& out)
      : device_(device), in_(in), out_(out), slices_(slices) {}

  /// A pass begins or has ended: what somebody may still need comes back to the device.
  void begin();
  /// In forward: slice `to` will compute with these values. What the slice before has computed
  /// with, and does not pass on, leaves for the host. Returns the bytes that do.
  int64_t cross(int64_t to, const std::vector<at::Tensor>& values);
  /// In backward: the slice's values come back.
  int64_t start_filling(int64_t number);
  /// In backward: the slice has done with them. What nobody else holds is free for the next ones.
  void release(int64_t number);
  /// The stream does nothing more before they are there.
  void hold_until_filled(int64_t slice, const c10::Stream& stream) const;

  int64_t host_bytes() const { return host_bytes_; }

 private:
  struct Value {
    c10::Storage storage;
    std::shared_ptr<HostMemory> host;
    bool is_away = false;
  };
  struct Slice {
    std::vector<Value> values;
    Event filled;
  };

  int64_t send(Slice& slice, const std::vector<at::Tensor>& kept);
  std::shared_ptr<HostMemory> host_memory(int64_t bytes);

  at::Device device_;
  const CopyStream& in_;
  const CopyStream& out_;
  std::vector<Slice> slices_;
  /// The values of the first slice are the caller's own.
  std::vector<c10::Storage> inputs_;
  int64_t current_ = -1;
  /// Memory that copies still read. Note [Running ahead]: it is freed when they are done, and the
  /// calling thread waits for those of the slice before last, or it would run far ahead of the
  /// device and have memory for all values at once.
  std::deque<std::pair<std::vector<c10::DataPtr>, Event>> leaving_;
  std::vector<std::shared_ptr<HostMemory>> spare_;
  int64_t host_bytes_ = 0;
};

}  // namespace fairshard::page

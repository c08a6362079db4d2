#pragma once
// Gradients of one bucket on their way into its flat memory, on a device on which every operation
// is a launch.

#include <fairshard/shard/flat_bucket.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <vector>

namespace fairshard::shard {

/// Copies the gradients of a bucket together, in a few launches for all of them. On a CPU each is
/// better copied as it comes, while it is in the cache.
class Packing {
 public:
  static bool is_for(const at::Tensor& bucket) { return !bucket.is_cpu(); }

  /// Says that a gradient of this bucket was made on the current stream.
  void add_stream(const at::Device& device);
  /// Puts the gradients of all parameters that have one in their places in `flat`, on the current
  /// stream. Their .grad becomes that place, or nothing unless `keeps` is true.
  void pack(const FlatBucket& bucket, const at::Tensor& flat, bool keeps);

 private:
  at::Tensor place(const FlatBucket& bucket, size_t slot, const at::Tensor& flat, bool keeps);
  void follow_streams(const std::vector<at::Tensor>& gradients);

  std::vector<c10::Stream> streams_;
  /// Memory that gradients stay in from one backward to the next, and their places in it.
  at::Tensor kept_;
  std::vector<at::Tensor> kept_places_;
};

/// Throws if a parameter's gradient is of a kind that cannot be reduced.
void check_can_be_reduced(const Parameter& parameter, const at::Tensor& gradient);

}  // namespace fairshard::shard

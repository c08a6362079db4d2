#pragma once
// The parameters of one slice: in host memory, and, while the slice computes, in a slot of the
// device.

#include "copy_stream.h"
#include <fairshard/page/host_memory.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

namespace fairshard::page {

/// Where parameters start in the slice's memory. Kernels keep their speed, and their bits, only if
/// data lie as aligned as separately allocated tensors do.
constexpr int64_t kAlignment = 256;

struct PagedParameter {
  /// The user's tensor. It refers to host memory, but for the time that its slice computes.
  at::Tensor parameter;
  /// What it refers to while the slice computes. Note [Filled storages]: the storage of the twin
  /// stays the same for ever, and only its data pointer changes. So whatever autograd has saved
  /// (the parameter, or views of it) is right again when the slice is filled for its backward.
  at::Tensor twin;
  /// On the host, in the twin's dtype; what is copied to the device. The parameter itself, unless
  /// dtypes differ or somebody has given the parameter other memory.
  at::Tensor image;
  /// On the host, in the twin's dtype; where the gradient arrives.
  at::Tensor gradient;
  int64_t offset = 0;
  int64_t bytes = 0;
  /// While the slice computes: what the parameter was before, and its gradient.
  at::Tensor host;
  at::Tensor old_gradient;
  /// A gradient has left the device for the host.
  bool arrives = false;
  /// The parameter's version when the image was last set from it by an optimizer.
  std::optional<int64_t> seen_version;
};

class PagedSlice {
 public:
  /// Lays parameters out. Takes no memory yet.
  PagedSlice(const std::vector<at::Tensor>& parameters, at::Device device,
             std::optional<at::ScalarType> dtype);

  /// Takes memory up: copies the parameters there, and lets them refer to it.
  void move_to(const std::shared_ptr<HostMemory>& images, int64_t offset);
  void set_masters(const std::shared_ptr<HostMemory>& masters, int64_t offset);
  void set_gradients(const std::shared_ptr<HostMemory>& gradients, int64_t offset);

  int64_t bytes() const { return bytes_; }
  /// Of parameters whose host dtype is not that of the device.
  int64_t master_bytes() const { return master_bytes_; }
  bool is_trainable() const;
  bool has_gradient_memory() const { return gradient_bytes_.defined(); }
  std::vector<PagedParameter>& parameters() { return parameters_; }

  /// Whether the twins have memory.
  bool is_filled() const { return is_filled_; }
  /// Gives the twins the memory of a slot, or takes it away.
  void fill(const at::Tensor& slot);
  void empty();
  /// What is copied into a slot.
  const at::Tensor& image_bytes() const { return image_bytes_; }

  /// Brings images up to date whose parameters lie elsewhere. Must not run beside a copy of them.
  void refresh_images();

  /// The parameters become those of the device, and back.
  void enter();
  void leave();
  bool is_entered() const { return is_entered_; }

  /// Sets host gradients aside, so that those of this backward begin anew on the device.
  void set_gradients_aside();
  /// Moves gradients into the slot, in the place of the weights. Returns whether there are any.
  bool pack_gradients();
  /// Copies what was packed to the host, on the current stream. Returns the bytes.
  int64_t send_gradients(const at::Tensor& slot);
  /// The gradients have arrived: they become those of the parameters, or are added to them.
  void publish_gradients();
  /// As if this backward had not been.
  void restore_gradients();

 private:
  std::vector<PagedParameter> parameters_;
  at::Tensor image_bytes_;
  at::Tensor gradient_bytes_;
  int64_t bytes_ = 0;
  int64_t master_bytes_ = 0;
  bool is_filled_ = false;
  bool is_entered_ = false;
};

}  // namespace fairshard::page

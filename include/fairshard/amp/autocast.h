#pragma once
// Mixed precision for C++: what torch.autocast is in Python.

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>

namespace fairshard {

/// While it lives, operations on tensors of a device type run in the dtype that suits them: matrix
/// products in `dtype` (if not given, bfloat16 on a CPU and float16 on CUDA), sums and losses in
/// float32. Guards nest, and the outermost one forgets the casts of weights that it kept. For this
/// thread; ends with its scope, also by an exception.
///
///   {
///     const Autocast autocast(at::kCUDA);
///     loss = loss_of(model->forward(input));
///   }
///   loss.backward();
class Autocast {
 public:
  /// `device` is the CPU or CUDA, `dtype` float16 or bfloat16. With `enabled` false it turns an
  /// enclosing one off.
  explicit Autocast(c10::DeviceType device, std::optional<c10::ScalarType> dtype = std::nullopt,
                    bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool was_enabled_;
  c10::ScalarType previous_dtype_;
};

}  // namespace fairshard

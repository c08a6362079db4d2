#pragma once
// Lets gradients know that they belong to a loss that was scaled.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace fairshard::scale {

/// Says, from within a hook, that the backward which runs now is that of a loss which the scaler of
/// this number (not 0) has scaled, and by how much.
void mark_scaled_backward(int64_t scaler, const at::Tensor& scale);

/// Of the backward which runs now on this thread, or of one that it runs within (reentrant
/// checkpointing): the scaler's number, or 0.
int64_t scaler_of_backward();
/// The same for the scale, or an undefined tensor.
at::Tensor scale_of_backward();

}  // namespace fairshard::scale

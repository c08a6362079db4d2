#pragma once
// Lets gradients know that they belong to a loss that was scaled.

#include <cstdint>

namespace fairshard::scale {

/// Says, from within a hook, that the backward which runs now is that of a loss which the scaler of
/// this number (not 0) has scaled.
void mark_scaled_backward(int64_t scaler);

/// The number that marks the backward which runs now on this thread, or 0.
int64_t scaler_of_backward();

}  // namespace fairshard::scale

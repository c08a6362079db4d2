#pragma once
// Memory of buckets, which goes back to the system when it is freed.

#include <ATen/core/Tensor.h>

namespace fairshard::shard {

/// A flat tensor with memory of its own, uninitialised.
///
/// Note [Memory of buckets]: the C library keeps freed blocks for itself, also those of megabytes
/// once such have been freed, and splits them up for others. A process that frees and allocates
/// buckets all the time would grow to a multiple of what it uses. So on a CPU the pages of a bucket
/// are given back before the block is. Device allocators have pools of their own.
at::Tensor empty_flat(int64_t numel, const at::TensorOptions& options);

/// Has the C library give back what it keeps of memory that torch has freed: gradients and
/// activations of a backward. For the modes of least memory, since it costs page faults later.
void return_freed_memory();

}  // namespace fairshard::shard

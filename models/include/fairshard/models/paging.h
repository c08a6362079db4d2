#pragma once
// A model as a list of blocks that an OffloadModel pages.

#include <fairshard/models/model.h>
#include <fairshard/nn/offload_model.h>

#include <vector>

namespace fairshard::models {

/// Embeddings, blocks, read-out: {tokens} to {logits}, and {tokens, labels} to {loss}. What is used
/// by the first and the last, a tied embedding, stays on the device during a pass.
///
///   OffloadModel offload(offload_blocks(model), OffloadOptions().device(at::kCUDA));
///   at::Tensor loss = offload.forward({tokens, labels}).at(0);
std::vector<OffloadBlock> offload_blocks(const CausalModel& model);

}  // namespace fairshard::models

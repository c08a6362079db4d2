#pragma once
// The model as a list of blocks that an OffloadModel pages.

#include "gpt/model.h"
#include <fairshard/nn/offload_model.h>

#include <vector>

namespace gpt {

/// Embeddings, blocks, read-out. The first and the last share the token embedding, which therefore
/// stays on the device during a pass.
std::vector<fairshard::OffloadBlock> offload_blocks(const Gpt& model);

}  // namespace gpt
